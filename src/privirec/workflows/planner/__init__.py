"""What to run for so many people and items with so many bytes, and what that will cost.

`population` says who it is for, `methods` what fits a budget and which of that is proposed (the one
place where this is decided), `work` what it takes in CPU seconds, `rows` what people see, and
`pilot` which budget reaches an accuracy on data at hand.
"""

from privirec.workflows.planner.methods import Candidate, Choice, candidates, choose
from privirec.workflows.planner.pilot import Pilot
from privirec.workflows.planner.population import Population
from privirec.workflows.planner.rows import Links, planned_rows

__all__ = [
    "Candidate",
    "Choice",
    "Links",
    "Pilot",
    "Population",
    "candidates",
    "choose",
    "planned_rows",
]
