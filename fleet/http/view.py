"""The shapes that all endpoints share: what they take, what they answer, and pages of it."""

from typing import Annotated, Any, Generic, Self, TypeVar
from uuid import UUID

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, GetJsonSchemaHandler, StringConstraints
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

T = TypeVar("T")
PAGE_MAX = 1000

# Not empty: a filter by "" is a mistake, and must not mean everything.
Text = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00]*$")]


def _flag(value: Any) -> Any:
    return {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value


Flag = Annotated[bool, Field(strict=True), BeforeValidator(_flag)]


def only(value: bool) -> BeforeValidator:
    """Accept this one truth value alone: to Python 0 and false are equal, to JSON they are not."""

    def check(given: Any) -> Any:
        if given is not None and given is not value:
            raise ValueError(f"Input should be {str(value).lower()}")
        return given

    return BeforeValidator(check)


class Shape(BaseModel):
    """A field that has nothing to say is left out: it is never null, and so says the schema."""

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler(core)
        for told in handler.resolve_ref_schema(schema).get("properties", {}).values():
            if told.get("default", ...) is None:
                del told["default"]
            others = [kind for kind in told.get("anyOf", ()) if kind != {"type": "null"}]
            if len(others) == 1:
                del told["anyOf"]
                told.update(others[0])
        return schema


class Given(Shape):
    """What a client sends: nothing unknown in it."""

    model_config = ConfigDict(extra="forbid")


class Nothing(Given):
    """Where nothing is taken."""


class View(Shape):
    """What a client is answered."""

    model_config = ConfigDict(json_schema_extra={"additionalProperties": False})

    def headers(self, root: str) -> dict[str, str]:
        """Return the headers that go with it; `root` is the path that the API is mounted at."""
        return {}

    @classmethod
    def of(cls, row: dict[str, Any]) -> Self:
        """Make one from a row, of the columns that it knows and that are not null."""
        return cls.model_validate({name: row[name] for name in cls.model_fields if row.get(name) is not None})


class Page(View, Generic[T]):
    """Some of many; `next` is the cursor of the page after, and left out on the last one."""

    items: list[T]
    next: UUID | None = None


class Paged(Given):
    """Where a page begins and how long it is."""

    cursor: UUID | None = Field(default=None, description="`next` of the page before.")
    limit: int = Field(default=100, ge=1, le=PAGE_MAX, description="At most so many.")


def page(kind: type[View], rows: list[dict[str, Any]], limit: int) -> dict[str, Any]:
    """Return the fields of a page, of rows that were asked for with one more than `limit`."""
    items = [kind.of(row) for row in rows[:limit]]
    return {"items": items} | ({"next": rows[limit - 1]["id"]} if len(rows) > limit else {})
