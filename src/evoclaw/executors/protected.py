"""What file tools do not change though it lies in the workspace: what runs by itself, or binds us.

A hook, a shell's profile or our own settings are code or rules in the guise of files. For commands
the cage protects the same names.
"""

from __future__ import annotations

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind

PROFILES = frozenset(
    {
        ".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".profile", ".zshrc", ".zshenv",
        ".zprofile", ".zlogin", ".zlogout", ".kshrc", ".cshrc", ".tcshrc", ".login", ".envrc",
        ".xprofile", ".xinitrc", ".xsessionrc", ".pam_environment", ".gitconfig", ".inputrc",
    }
)  # fmt: skip
FOLDERS = {
    ".git": "git runs and obeys what is in it",
    ".husky": "git runs what is in it",
    ".ssh": "it says who may log in",
    ".gnupg": "it holds keys",
    ".evoclaw": "it holds our own settings and skills",
}
BELOW_CONFIG = frozenset({"autostart", "fish", "systemd", "git", "environment.d"})
OURS = frozenset({"agent.toml", "evoclaw.toml"})


def check_change(path: str, inside: str) -> None:
    """Refuse to change a protected file, named by its path below the root."""
    if why := _why(inside.casefold().split("/")):
        raise ToolFailure(
            ErrorKind.PERMISSION_DENIED,
            f"'{path}' is protected: {why}. Explain to the user what should be changed in it.",
        )


def _why(parts: list[str]) -> str:
    for part in parts:
        # Some file systems take these for the same name.
        if why := FOLDERS.get(part.rstrip(". ")):
            return why
    if any(
        one == ".config" and two in BELOW_CONFIG for one, two in zip(parts, parts[1:], strict=False)
    ):
        return "the system runs or obeys what is in it"
    if parts[-1] in PROFILES:
        return "a program runs or obeys it by itself"
    return "it is our own settings" if parts[-1] in OURS else ""
