"""Web pages for this machine alone: one for the person whose device it is, one for the operator.

Standard library only. `guard` says who may ask, `web` listens, `html` fills templates; a page is a
`Site` of routes that call what the commands call.
"""
