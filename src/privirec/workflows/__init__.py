"""The work behind the commands: runs, tables, sweeps, costs and audits, without the CLI."""
