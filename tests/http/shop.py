"""The app that is served in these tests: a task for each kind of argument and of end."""

import asyncio
from datetime import date, datetime, timedelta
from enum import Enum
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import BaseModel, Field

from fleet import Fleet, Settings


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Item(BaseModel):
    """One line of an order."""

    product: str = Field(min_length=1, max_length=20)
    count: Annotated[int, Field(ge=1, le=1000)] = 1
    weight: float | None = None
    unit_price: float | None = Field(default=None, alias="unitPrice", ge=0)


def shop(database_url: str | None = None, settings: Settings | None = None) -> Fleet:
    """Return the app, on a database or on the one that the environment names."""
    app = Fleet(database_url, settings=settings)

    @app.task(idempotent=True, queue="sums", priority=3)
    async def add(a: int, b: int = 0) -> int:
        """Add two numbers."""
        return a + b

    @app.task(idempotent=True)
    async def echo(value: Any = None) -> Any:
        """Give back what came."""
        return value

    @app.task
    def pay(card: str) -> None:
        raise ValueError(f"refused: {card}")

    @app.task(idempotent=True)
    async def hold() -> None:
        await asyncio.Event().wait()

    @app.task(idempotent=True, queue="sums")
    def scale(factor: float, exactly: bool, values: list[float], unit: Literal["m", "km"] = "m") -> int:
        return len(values)

    @app.task(idempotent=True)
    def sort(names: list[str], weights: dict[str, int] | None = None, limit: int | str | None = None) -> list[str]:
        return sorted(names)

    @app.task(idempotent=True)
    def remind(at: datetime, day: date, wait: timedelta | None = None, about: UUID | None = None) -> str:
        return at.isoformat()

    @app.task(idempotent=True, name="ship/order ~ü")
    async def ship(items: list[Item], colour: Colour = Colour.RED, by_name: dict[str, Item] | None = None) -> int:
        return sum(item.count for item in items)

    return app


app = shop()
