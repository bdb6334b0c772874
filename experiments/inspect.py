"""The command `creditjax-inspect`, from a checkout: shows the credit that recipes give to a file of rollouts."""

from creditjax.report import inspect_command

if __name__ == "__main__":
    inspect_command.run()
