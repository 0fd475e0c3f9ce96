"""`kvferry completion`: scripts for bash, zsh and fish, made from the parser itself."""

from __future__ import annotations

import argparse

from .parser import build_parser


def run(args: argparse.Namespace) -> int:
    """Print the script of one shell."""
    print(_SCRIPTS[args.shell](_words()), end="")
    return 0


def _words() -> dict[str, list[str]]:
    """What may follow each command; under the empty name the commands themselves."""
    parser = build_parser()
    [commands] = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]  # noqa: SLF001 -- argparse has no public way
    words = {"": ["--help", "--version", *commands.choices]}
    for name, command in commands.choices.items():
        words[name] = []
        for action in command._actions:  # noqa: SLF001 -- same
            words[name] += [each for each in action.option_strings if each.startswith("--")]
            words[name] += [] if action.option_strings else list(action.choices or ())
    return words


def _bash(words: dict[str, list[str]]) -> str:
    cases = "".join(
        f'        {name}) words="{" ".join(each)}" ;;\n' for name, each in words.items() if name
    )
    return f"""\
_kvferry() {{
    local words current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}}
    case $previous in
        --config | --socket-dir)
            COMPREPLY=($(compgen -f -- "$current"))
            return ;;
    esac
    if ((COMP_CWORD == 1)); then
        words="{" ".join(words[""])}"
    else
        case ${{COMP_WORDS[1]}} in
{cases}        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _kvferry kvferry
"""


def _zsh(words: dict[str, list[str]]) -> str:
    cases = "".join(
        f"        {name}) compadd -- {' '.join(each)} ;;\n" for name, each in words.items() if name
    )
    return f"""\
#compdef kvferry
_kvferry() {{
    if ((CURRENT == 2)); then
        compadd -- {" ".join(words[""])}
        return
    fi
    case ${{words[2]}} in
{cases}    esac
    _files
}}
compdef _kvferry kvferry
"""


def _fish(words: dict[str, list[str]]) -> str:
    lines = [f'complete -c kvferry -n __fish_use_subcommand -f -a "{" ".join(words[""])}"']
    for name, each in words.items():
        if name and each:
            condition = f'"__fish_seen_subcommand_from {name}"'
            lines.append(f'complete -c kvferry -n {condition} -a "{" ".join(each)}"')
    return "\n".join(lines) + "\n"


_SCRIPTS = {"bash": _bash, "zsh": _zsh, "fish": _fish}
