"""Web pages for this machine only: one for the owner of a device, one for the operator.

They use the standard library only. `guard` decides which requests are allowed, `web` listens and
`html` fills templates. A page is a `Site` of routes that call the same functions as the commands.
"""
