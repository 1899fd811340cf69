"""Functions with every kind of syntax that Python 3.11 knows; any version runs it without other packages."""

from __future__ import annotations

import asyncio
import contextlib


def parameters(a, /, b, *c, d=1, e, **f):
    return (a, b, *c), {"d": d, **f}, [e]


def numbers():
    return 1, -1, 1.5, 1e300, 2j, 0x1F, 1_000, True, None, ...


def texts():
    return (
        "ab",
        b"c",
        r"\n",
        """long
text""",
        "\N{BULLET}",
    )


def formatted(a, b):
    return f"{a}", f"{a!r:>{b}}", f"{a=}", f"x{a}yz{b:.2f}{{}}", f"{a['k']}{'q'}", f"{a:{b}{'<'}}"


def operators(a, b):
    a += b
    a @= b
    return a + b - a * b / a // b % a**b, a << b >> a | b ^ a & ~b, not a, a @ b


def comparisons(a, b, c):
    return a < b <= c != a is not b, a in b, c not in a, (a and b) or c, a if b else c


def access(a):
    return a.b.c[1], a[1:2, ::3, ...], a[:], a()(1, *a, k=2, **a), a[*a]


def comprehensions(a):
    return [x for x in a if x if not x], {x for y in a for x in y}, {k: v + 1 for k, v in a}, (x async for x in a)


def loops(a):
    for x, *y in a:
        if x:
            continue
        elif y:
            break
        else:
            pass
    else:
        a.clear()
    while a:
        a = a.pop()
    else:
        del a.x, a[0]


def errors(a):
    try:
        a()
    except (KeyError, ValueError) as error:
        raise TypeError("text") from error
    except TypeError:
        raise
    else:
        a = 1
    finally:
        assert a, "message"


def groups(a):
    try:
        a()
    except* ValueError as group:
        return_value = group
        del return_value


def managers(a):
    with a as b, contextlib.suppress(KeyError):
        b()
    with a() as (x, y), a:
        return x + y


def assignments(a):
    x = y = a
    x: int = 1
    z: str
    (w := y)
    x, (y, *z) = a
    return w, x, y, z


def scopes():
    count = 0

    def inner():
        nonlocal count
        global elsewhere
        count += 1
        elsewhere = count
        return lambda: count

    class Local(dict):
        """Text."""

        kind: str = "x"

        def method(self):
            return super().__len__()

        @property
        def size(self) -> int:
            return len(self)

    return inner, Local


def generators(a):
    x = yield
    yield x
    yield from a
    return 1


async def coroutines(a):
    async with a as b:
        async for x in b:
            await x
    return [y async for y in a if await y], await asyncio.sleep(0)


async def flows(a):
    while True:
        yield await a


def patterns(a):
    match a:
        case 0 | -1 | "x" | None | True:
            return 1
        case [x, 2, *rest] if x:
            return rest
        case {"k": v, **others}:
            return v, others
        case str(b) | bytes(b):
            return b
        case range(start=1, stop=s):
            return s
        case (1 + 2j) | [] as c:
            return c
        case _:
            return None


def imports():
    import os.path as path
    from collections import OrderedDict as Ordered
    from collections import abc

    return path, Ordered, abc


def private(self):
    return self.__a, self.__b__


short = lambda a, *, b=2: a + b  # noqa: E731
