"""The SMT solver Bitwuzla as a program that answers SMT-LIB on its standard input, which its package lacks."""

import sys

import bitwuzla


def main() -> None:
    """Answer command by command until there are no more."""
    options = bitwuzla.Options()
    options.set(bitwuzla.Option.PRODUCE_MODELS, True)
    parser = bitwuzla.Parser(bitwuzla.TermManager(), options)
    command, depth = "", 0
    for line in sys.stdin:
        if line.startswith(";"):
            continue
        command += line
        depth += line.count("(") - line.count(")")
        if depth or not command.strip():
            continue
        if command.startswith("(exit"):
            break
        # The parser itself refuses to undo the first push.
        if command.startswith("(push"):
            parser.bitwuzla().push(1)
        elif command.startswith("(pop"):
            parser.bitwuzla().pop(1)
        else:
            parser.parse(command, parse_only=False, parse_file=False)
        sys.stdout.flush()
        command = ""


if __name__ == "__main__":
    main()
