"""Planner: proposes a method for a population and a budget of bytes, and estimates its cost.

`population` describes the people and items. `methods` finds what fits a budget and is the only
place that decides what is proposed. `work` estimates CPU seconds, `rows` makes the output rows, and
`pilot` finds the budget that reaches a given accuracy on available data.
"""

from privirec.app.planner.methods import PlannedMethod, Proposal, candidates, choose
from privirec.app.planner.pilot import Pilot
from privirec.app.planner.population import Population
from privirec.app.planner.rows import Links, planned_rows
