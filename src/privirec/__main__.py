"""`python -m privirec` is the `privirec` command."""

from privirec.cli import start

if __name__ == "__main__":
    start()
