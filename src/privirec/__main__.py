"""`python -m privirec` is the `privirec` command."""

from privirec.cli.main import run

if __name__ == "__main__":
    run()
