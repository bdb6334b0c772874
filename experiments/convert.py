"""The command `creditjax-convert`, from a checkout: converts other trainers' rollouts."""

from creditjax.interop import convert_command

if __name__ == "__main__":
    convert_command.run()
