"""The names in a workspace that neither file tools nor commands may change.

A hook, a shell profile, an editor's tasks or our own settings are code or rules in the guise of
files: programs run or obey them by themselves when a user enters a folder, opens it or asks for
its status. File tools refuse to change them; for commands see `workspace.guard`.
"""

from __future__ import annotations

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind

PROFILE_NAMES = frozenset(
    {
        # Shells, and what they load when a folder is entered.
        ".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".profile", ".zshrc", ".zshenv",
        ".zprofile", ".zlogin", ".zlogout", ".kshrc", ".cshrc", ".tcshrc", ".login", ".envrc",
        ".xprofile", ".xinitrc", ".xsessionrc", ".pam_environment", ".inputrc", ".tmux.conf",
        ".mise.toml", "mise.toml", ".mise.local.toml", "mise.local.toml", ".miserc.toml",
        ".rtx.toml", ".autoenv.zsh", ".bash_aliases", ".bash_completion", ".zsh_aliases",
        # Version control.
        ".gitconfig", ".hgrc", ".pre-commit-config.yaml", ".overcommit.yml", "lefthook.yml",
        "lefthook.yaml", ".lefthook.yml", ".lefthook.yaml",
        # Editors and agents.
        ".exrc", ".vimrc", ".gvimrc", ".nvimrc", ".nvim.lua", ".lvimrc", ".emacs", ".dir-locals.el",
        ".dir-locals-2.el", ".mcp.json",
        # Debuggers and interpreters.
        ".gdbinit", ".lldbinit", ".pdbrc", ".rprofile", ".irbrc", ".pryrc", ".ghci",
    }
)  # fmt: skip
"""Files that programs run or obey by themselves, in lower case."""
PROTECTED_FOLDERS = {
    ".git": "git runs or reads what is in it",
    ".hg": "Mercurial runs or reads what is in it",
    ".jj": "Jujutsu runs or reads what is in it",
    ".sl": "Sapling runs or reads what is in it",
    ".husky": "git runs what is in it",
    ".ssh": "it decides who may log in",
    ".gnupg": "it holds keys",
    ".evoclaw": "it holds EvoClaw's own settings and skills",
    ".vscode": "an editor runs or reads what is in it",
    ".idea": "an editor runs or reads what is in it",
    ".fleet": "an editor runs or reads what is in it",
    ".zed": "an editor runs or reads what is in it",
    ".vim": "an editor runs what is in it",
    ".emacs.d": "an editor runs what is in it",
    ".devcontainer": "an editor runs what is in it",
    ".claude": "another agent runs or reads what is in it",
    ".cursor": "another agent runs or reads what is in it",
    ".codex": "another agent runs or reads what is in it",
    ".gemini": "another agent runs or reads what is in it",
    ".mise": "a shell runs what is in it",
}
PROTECTED_INNER_NAMES = {
    ".config": frozenset(
        {"autostart", "fish", "systemd", "git", "environment.d", "nvim", "mise", "mise.toml"}
        | {"direnv", "zsh", "tmux", "emacs", "vim"}
    ),
    ".cargo": frozenset({"config", "config.toml", "env", "bin"}),
    ".local": frozenset({"bin"}),
}
"""Names that are protected in folders of these names."""
OWN_SETTINGS_NAMES = frozenset({"agent.toml", "evoclaw.toml"})
PROTECTED_FILES = PROFILE_NAMES | OWN_SETTINGS_NAMES
"""Names of files that are protected wherever they are, in lower case."""


def check_not_protected(path: str, inside: str) -> None:
    """Refuse to change a protected file, named by its path below the root."""
    if why := _protection_reason(inside.casefold().split("/")):
        raise ToolFailure(
            ErrorKind.PERMISSION_DENIED,
            f"'{path}' is protected: {why}. Explain to the user what should be changed in it.",
        )


def _protection_reason(parts: list[str]) -> str:
    for part in parts:
        # Some file systems treat these as the same name.
        if why := PROTECTED_FOLDERS.get(part.rstrip(". ")):
            return why
    if any(
        below in PROTECTED_INNER_NAMES.get(part, ())
        for part, below in zip(parts, parts[1:], strict=False)
    ):
        return "programs run or read it automatically"
    if parts[-1] in PROFILE_NAMES:
        return "a program runs or reads it automatically"
    if parts[-1] == "head":
        return "git treats a folder with this file as a repository, and runs what is in it"
    return "it holds EvoClaw's own settings" if parts[-1] in OWN_SETTINGS_NAMES else ""
