"""What the commands do: runs, tables, sweeps, costs and audits, free of any command line."""
