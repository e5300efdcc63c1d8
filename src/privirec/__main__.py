"""Entry point of `python -m privirec`, equivalent to the `privirec` command."""

from privirec.app.cli import start

if __name__ == "__main__":
    start()
