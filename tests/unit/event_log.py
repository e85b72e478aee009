"""What would be in the journal, kept for a test."""


class EventLog:
    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, object]]] = []

    def info(self, event: str, **fields: object) -> None:
        self.lines.append((event, fields))

    warning = error = info

    def names(self) -> list[str]:
        return [name for name, _ in self.lines]
