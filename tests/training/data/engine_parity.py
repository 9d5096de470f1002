"""Rows with every trap, expressions over them, and what the engine of training makes of both: the
measure of serving.
"""

from __future__ import annotations

import datetime as dt
import functools
import math
from decimal import Decimal
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa

from training.data.engine.engine import connect
from training.data.serving_expressions import derive
from training.data.table.portable import portable

ENGINE = connect(threads=1)
N = None
DATES = [
    "2020-02-29",
    "1970-01-01",
    "1969-12-31",
    N,
    "2021-01-03",
    "2000-12-31",
    "2024-12-30",
    "1900-03-01",
    "2016-01-31",
]
ENDS = [
    "2021-02-28",
    "1970-01-08",
    N,
    "2020-01-01",
    "2021-01-04",
    "2000-12-31",
    "2023-01-01",
    "1900-02-28",
    "2016-02-29",
]
MICROS = [
    1583020799999999,
    0,
    -3599999995,
    N,
    1609675200000000,
    978224523120000,
    1735516800000000,
    -2203877694000000,
    1454236200000000,
]
NANOS = [
    1582934399123456789,
    0,
    -1,
    N,
    1609675200000000500,
    -315619199876543500,
    999,
    1735516800000000001,
    5,
]
AMOUNTS = ["1.25", "-0.05", "99999999.99", N, "0.00", "-2.50", "3.14", "12345.67", "0.01"]


def days(texts: list[str | None]) -> pa.Array:
    return pa.array([t and dt.date.fromisoformat(t) for t in texts])


TABLE = pa.table(
    {
        "i": pa.array([0, 1, -1, N, 7, 23, -40, 2**53 + 1, 1000], pa.int64()),
        "k": pa.array([3, -2, N, 5, 1, 2, 9, -7, 4], pa.int32()),
        "sm": pa.array([0, 1, -1, N, 100, -128, 127, 5, 6], pa.int8()),
        "tiny": pa.array([0, 1, -1, N, 10, -11, 7, 5, 6], pa.int8()),
        "ub": pa.array([1, 2, 2**62, N, 100, 8, 127, 5, 6], pa.uint64()),
        "x": pa.array([0.0, -0.0, 2.5, -2.5, N, 1e300, 0.1, -1234.5678, math.inf]),
        "z": pa.array([1.0, -1.0, 2.0, 0.5, 3.5, N, 1e-5, 0.3, 2.0]),
        "f": pa.array([0.1, -2.5, N, 1e10, 16777216.0, 0.0, 3.3, 1e-7, 2.0], pa.float32()),
        "b": pa.array([True, False, N, True, False, N, True, False, True]),
        "c": pa.array([True, True, True, False, False, False, N, N, N]),
        "s": pa.array(["Hello World", "", N, " pad ", "éàß", "a%b_c", "12", "ΑΣ x-y-z", "[70-80)"]),
        "t": pa.array(["o", "", N, "a", "é", "%", "1", "-", "7"]),
        "n": pa.array(["12", " -3.5 ", "1e1", N, "0", ".5", "7.", "-0", "100"]),
        "d": days(DATES),
        "e": days(ENDS),
        "ts": pa.array(MICROS, pa.timestamp("us")),
        "tz": pa.array(MICROS[::-1], pa.timestamp("us", tz="UTC")),
        "ns": pa.array(NANOS, pa.timestamp("ns")),
        "ms": pa.array([v and v // 1_000_000 for v in NANOS], pa.timestamp("ms")),
        "dec": pa.array([v and Decimal(v) for v in AMOUNTS], pa.decimal128(10, 2)),
        "dteday": pa.array(
            [
                "1/1/11",
                "12/31/12",
                "02/29/12",
                N,
                "7/4/11",
                "01/02/69",
                "01/02/68",
                " 3/3/03",
                "10/10/10",
            ]
        ),
        "cat": pa.array(["u", "v", N, "u", "w", "v", "u", "u", "w"]).dictionary_encode(),
    }
)
EXPRESSIONS = [
    expression.strip()
    for expression in r"""
2 * pi() * i / 24 ; sin(2 * pi() * i / 24) ; concat(b, '-', i) ; concat(x, z) ; concat(d, ts, tz) ; concat(dec, k, b, null) ; concat(ns, '|', ms)
concat_ws(t, s, n, i) ; s || t ; i || s ; dayofyear(strptime(dteday, '%m/%d/%y')) ; strptime(dteday, '%m/%d/%y') + to_hours(k)
make_timestamp(2000 + abs(k), 1 + abs(k) % 12, 28, 5, 6, abs(z) + 56.4) ; make_timestamp(2000 + abs(k), 1 + abs(k) % 12, 28, 5, 6, abs(k))
make_date(2000, abs(k), 28) ; s = '<30' ; s <> t ; s < t ; s >= t ; 10 * try_cast(substr(s, 2, 1) as integer) + 5 ; least(i, 125) ; least(i, x, z)
greatest(x, z, f) ; greatest(s, t) ; greatest(d, e) ; least(ts, d) ; least(b, c) ; month(d) ; year(ts) ; day(ts) ; hour(ts) ; minute(ts) ; second(ts)
quarter(d) ; week(d) ; dayofweek(d) ; weekday(ts) ; isodow(ts) ; dayofyear(ts) ; dayofmonth(d) ; isoyear(d) ; yearweek(d) ; year(tz) ; hour(tz)
week(tz) ; hour(d) ; year(ns) ; second(ns) ; month(ms) ; date_part('dow', ts) ; date_part('epoch', ts) ; extract(doy from d) ; epoch(ts) ; epoch(d)
epoch(tz) ; epoch(ts - d::timestamp) ; epoch(interval 14 month) ; epoch(to_months(k)) ; last_day(d) ; last_day(ts) ; date_trunc('year', ts)
date_trunc('quarter', d) ; date_trunc('month', ts) ; date_trunc('week', ts) ; date_trunc('day', ts) ; date_trunc('hour', ts)
date_trunc('minute', ts) ; date_trunc('second', ts) ; datetrunc('month', tz) ; date_diff('year', d, e) ; date_diff('quarter', d, e)
date_diff('month', d, e) ; date_diff('week', d, e) ; date_diff('week', ts, e::timestamp + interval 5 hour)
date_diff('week', e::timestamp + interval 5 hour, ts) ; date_diff('day', d, e) ; date_diff('day', ts, e) ; date_diff('hour', ts, e)
date_diff('minute', d, ts) ; date_diff('second', d, ts) ; date_diff('hour', ts, tz) ; datediff('day', e, ts) ; d - e ; ts - d > interval 5 hour ; to_days(k) < to_months(k) + to_hours(i % 100) ; to_days(30) = to_months(k // k) ; d + 3 ; 3 + d ; d - k
d + interval 1 month ; d - interval 1 month ; ts + interval 13 month ; ts - interval 1 year ; ts + interval '1 month 2 days 03:04:05.5'
ts + to_days(k) ; ts + to_hours(k) ; ts + to_minutes(k) ; ts + to_seconds(z) ; ts + to_weeks(k) ; ts - to_milliseconds(z) ; ts + to_years(k)
ts + (to_days(k) + to_hours(k) - to_minutes(3)) ; to_days(k) + ts ; ts + - to_days(k) ; epoch(ts - tz::timestamp) ; ts - (ts - d::timestamp)
tz + interval 1 day ; d = e ; d < e ; d >= ts ; ts > tz ; ns > ts ; ns = ms ; d > '2000-01-01' ; ts between '1970-01-01' and '2021-01-01 10:00'
i + k ; i - k ; i * k ; i / k ; i // k ; i % k ; -i ; - tiny ; + i ; tiny + tiny ; tiny * tiny ; tiny * 2 ; tiny + 100 ; ub + 1 ; ub - 1 ; ub * 2 ; ub / 2 ; i + ub
i * 1.5 ; i + 0.1 ; i - 0.25 ; i > 0.5 ; x > 0.5 ; x * 0.1 ; 0.1 + 0.2 ; dec + 1 ; dec * 0.05 ; dec * 1.55 ; dec - i ; dec / 3 ; dec % 2 ; dec // 2
-dec ; abs(dec) ; dec > x ; dec = 1.25 ; x + z ; x - z ; x * z ; x / z ; x // z ; x % z ; mod(x, z) ; mod(i, k) ; fmod(x, 2) ; f * 2 ; f / 3 ; f + z
f % 2 ; -x ; - f ; x ** 2 ; z ^ 0.5 ; pow(z, k) ; power(x, 2) ; abs(i) ; abs(x) ; abs(tiny) ; sign(x) ; sign(i) ; sign(dec) ; sqrt(x) ; cbrt(z) ; exp(z)
exp(x) ; ln(z) ; ln(x) ; log(z) ; log(2, z) ; log10(x) ; log2(z) ; cos(z) ; tan(z) ; asin(z) ; acos(z) ; atan(x) ; atan2(x, z) ; sinh(z) ; cosh(z)
tanh(x) ; radians(x) ; degrees(z) ; round(x) ; round(x, 2) ; round(x, -2) ; round(x, k) ; round(f) ; round(f, 1) ; round(i) ; round(i, -1)
round(k, 2) ; round(dec) ; round(dec, 1) ; round(dec, -2) ; floor(x) ; ceil(x) ; ceiling(z) ; trunc(x) ; floor(i) ; ceil(i) ; floor(dec) ; ceil(dec)
trunc(dec) ; trunc(i) ; trunc(x, 1) ; trunc(dec, 1) ; isnan(x) ; isinf(x) ; isfinite(x) ; x is null ; x is not null ; s is null ; b and c ; b or c
not b ; b and c and x > 0 ; not (b or c) ; b = c ; b > c ; b = 1 ; b::int + 1 ; x = z ; x != z ; x < z ; x <= z ; x > z ; x >= z
x is distinct from z ; x is not distinct from z ; i is distinct from k ; i in (1, 7, 23) ; i in (1, null) ; i not in (1, 7) ; i not in (1, null)
x in (2.5, 0) ; s in ('12', '', 'x') ; d in ('2020-02-29', '1970-01-01') ; i in (k, 0) ; x between -3 and z ; x not between -3 and z
i between 1 and k ; s between 'A' and 'b' ; case when x > 0 then 'pos' when x < 0 then 'neg' else 'zero' end ; case when x > 0 then 1 end
case when b then x else i end ; case when b then d end ; case s when '12' then 1 when '' then 2 else 3 end
case when n ~~ '%e%' then null when length(trim(n)) > 0 then cast(n as double) end ; case when i = 0 then null else 1 // i end ; if(x > 1, 'a', t)
coalesce(x, z, 0) ; coalesce(s, t, 'none') ; coalesce(i, 0) ; coalesce(d, e) ; coalesce(case when i <> 0 then 5 // i end, -1) ; nullif(i, 0)
nullif(s, '') ; nullif(x, z) ; s like '%o%' ; s like '_%' ; s like 'a\%%' ; s not like 'H%' ; s ilike 'h%' ; s not ilike 'h%' ; s ilike '%É%' ; s like t ; contains(s, t)
starts_with(s, t) ; prefix(s, 'a') ; ends_with(s, 'd') ; suffix(s, t) ; instr(s, t) ; strpos(s, 'o') ; position('o' in s) ; length(s) ; len(s)
lower(s) ; upper(s) ; lcase(s) ; ucase(s) ; trim(s) ; ltrim(s) ; rtrim(s) ; trim(s, 'H d') ; ltrim(s, 'H') ; left(s, k) ; right(s, k)
substr(s, 2, 1) ; substr(s, k) ; substr(s, k, 2) ; substr(s, 2, k) ; substring(s from 2 for 3) ; substring(s, k, k) ; replace(s, t, 'X')
replace(s, 'l', '') ; split_part(s, '-', 2) ; split_part(s, t, k) ; lpad(s, 8, '*') ; rpad(s, 8, 'ab') ; lpad(s, k, '.') ; cast(n as double)
cast(n as integer) ; cast(n as bigint) ; cast(n as decimal(10,1)) ; cast(n as float) ; try_cast(n as tinyint) ; try_cast(s as integer)
try_cast(s as double) ; try_cast(s as date) ; try_cast(x as integer) ; try_cast(x as float) ; try_cast(x as decimal(6,2)) ; try_cast(i as tinyint)
try_cast(ub as bigint) ; try_cast(s as boolean) ; try_cast(n as boolean) ; cast(z as integer) ; cast(z as bigint) ; cast(f as bigint)
cast(x as varchar) ; cast(z as varchar) ; cast(cast(f as double) as varchar) ; cast(i as varchar) ; cast(ub as varchar) ; cast(b as varchar) ; cast(dec as varchar)
cast(d as varchar) ; cast(ts as varchar) ; cast(tz as varchar) ; cast(ns as varchar) ; cast(ms as varchar) ; cast(dec as integer)
cast(dec as double) ; cast(dec as decimal(12,1)) ; cast(dec as decimal(15,4)) ; cast(z as decimal(10,2)) ; cast(i as decimal(20,2))
cast(i as double) ; cast(i as float) ; cast(x as boolean) ; cast(i as boolean) ; cast(b as double) ; cast(b as integer) ; cast(d as timestamp)
cast(ts as date) ; cast(tz as date) ; cast(ns as date) ; cast(ns as timestamp) ; cast(ms as timestamp) ; cast(ts as timestamp_s)
cast(ts as timestamp_ms) ; cast(ts as timestamp_ns) ; cast(tz as timestamp) ; cast(ts as timestamptz) ; cast(d || ' 10:11' as timestamp)
cast(d || ' 10:11:12.5+02:00' as timestamptz) ; cast(d || ' 10:11:12.5+02:00' as timestamp) ; cast(cast(d as varchar) as date)
cast(cast(ts as varchar) as timestamp) ; cast(cast(cast(ns as varchar) as timestamp_ns) as varchar)
strptime(cast(d as varchar), '%Y-%m-%d') ; try_strptime(cast(ts as varchar), '%Y-%m-%d %H:%M:%S')
try_strptime(cast(ts as varchar), '%Y-%m-%d %H:%M:%S.%f') ; try_strptime(s, '%Y') ; cat = 'u' ; cat || '!' ; cat in ('u', 'w') ; cat ; cat is null ; i
x ; s ; dec ; d is null and x > 1 or b ; 1 ; 'a' ; i + null ; string_split(s, '-')[1] ; list_extract(string_split(s, t), k)
""".replace("\n", ";").split(";")  # noqa: E501
    if expression.strip()
]


def engine(expressions: list[str], table: pa.Table) -> list[list[Any]]:
    """What the engine gives: a list of values for each expression."""
    ENGINE.register("given", table)
    found = ENGINE.execute(
        f"select {', '.join(f'({e})' for e in expressions)} from given"
    ).fetchall()
    return [list(values) for values in zip(*found, strict=True)] or [[] for _ in expressions]


def engine_refuses(expression: str, table: pa.Table) -> bool:
    try:
        engine([expression], table)
    except duckdb.Error:
        return True
    return False


def types_of(table: pa.Table) -> dict[str, str]:
    ENGINE.register("given", table)
    return {row[0]: row[1] for row in ENGINE.execute("describe given").fetchall()}


@functools.lru_cache(maxsize=256)
def trees_of(expressions: tuple[str, ...], types: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    return portable({f"y{i}": e for i, e in enumerate(expressions)}, dict(types))


def served(
    expressions: list[str], table: pa.Table, frame: pd.DataFrame | None = None
) -> list[list[Any]]:
    """What serving gives for the same rows in a frame."""
    trees = trees_of(tuple(expressions), tuple(types_of(table).items()))
    found = derive(table.to_pandas(integer_object_nulls=True) if frame is None else frame, trees)
    return [list(found[f"y{i}"]) for i in range(len(expressions))]


def is_null(value: Any) -> bool:
    return (
        value is None
        or value is pd.NaT
        or (isinstance(value, float | np.floating) and math.isnan(value))
    )


def same(found: Any, wanted: Any) -> bool:
    if is_null(found) or is_null(wanted):
        return is_null(found) and is_null(wanted)
    if isinstance(found, pd.Timestamp):
        moment = (
            wanted if isinstance(wanted, dt.datetime) else dt.datetime.combine(wanted, dt.time())
        )
        return found.to_pydatetime(warn=False) == moment.replace(tzinfo=None)
    if isinstance(wanted, float | Decimal):
        return math.isclose(found, float(wanted), rel_tol=1e-14) and math.copysign(
            1, found
        ) == math.copysign(1, wanted)
    return (
        isinstance(found, str) == isinstance(wanted, str)
        and isinstance(found, bool | np.bool_) == isinstance(wanted, bool)
        and found == wanted
    )


def differences(
    expressions: list[str], table: pa.Table, frame: pd.DataFrame | None = None
) -> list[str]:
    """Where serving and engine disagree, in words."""
    both = zip(
        expressions, served(expressions, table, frame), engine(expressions, table), strict=True
    )
    return [
        f"{expression}: row {row}: serving {f!r}, engine {w!r}"
        for expression, found, wanted in both
        for row, (f, w) in enumerate(zip(found, wanted, strict=True))
        if not same(f, w)
    ]
