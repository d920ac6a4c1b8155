"""A user's app: what may be run twice, and what must not. What they do outside goes to a sink."""

from fleet import Context, Fleet
from fleet.faultpoint import faultpoint
from fleet.testing.sink import report

app = Fleet()


@app.task(idempotent=True)
def count(ctx: Context, text: str) -> int:
    report(ctx, text=text)
    return len(text.split())


@app.task
def charge(ctx: Context, order: int) -> str:
    report(ctx, order=order)
    faultpoint("charge.paid")
    return f"order {order} is paid"
