"""What the shop writes to PostgreSQL: its tables, and a stream of orders, prices and cancellations."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Iterator

import psycopg

QUIET = 7301
"""The advisory lock that a transaction of the shop shares; a process that holds it alone sees no changes."""
SCHEMA = """
CREATE TABLE IF NOT EXISTS customers (id serial PRIMARY KEY, name text NOT NULL, city text NOT NULL);
CREATE TABLE IF NOT EXISTS products (
    id serial PRIMARY KEY, name text NOT NULL, description text NOT NULL, category text NOT NULL,
    price numeric(10, 2) NOT NULL);
CREATE TABLE IF NOT EXISTS orders (
    id bigserial PRIMARY KEY, customer_id int NOT NULL REFERENCES customers,
    product_id int NOT NULL REFERENCES products, quantity int NOT NULL, price numeric(10, 2) NOT NULL,
    at timestamptz NOT NULL DEFAULT now());
"""
PRODUCTS = [
    ("Kettle", "A steel kettle that whistles when the water boils", "kitchen", "39.90"),
    ("Teapot", "A blue teapot of stoneware with room for six cups", "kitchen", "32.50"),
    ("Bread knife", "A long knife with teeth, for crusts", "kitchen", "24.00"),
    ("Iron pan", "A heavy pan that lasts for generations", "kitchen", "58.00"),
    ("Desk lamp", "A lamp with a warm light and a long arm", "home", "74.90"),
    ("Wool blanket", "A grey blanket of Icelandic wool", "home", "119.00"),
    ("Wall clock", "A silent clock with large numbers", "home", "29.90"),
    ("Bookshelf", "Five boards of oak, for two hundred books", "home", "249.00"),
    ("Spade", "A spade with a handle of ash", "garden", "44.00"),
    ("Watering can", "A can of zinc that holds nine litres of water", "garden", "36.90"),
    ("Rose shears", "Sharp shears for roses and thin branches", "garden", "27.50"),
    ("Bird house", "A house for tits, with a door to clean it", "garden", "21.90"),
    ("Tent", "A tent for two, in which both can sit", "outdoors", "289.00"),
    ("Compass", "A compass with a mirror and a clear needle", "outdoors", "48.00"),
    ("Rain coat", "A yellow coat that keeps out the rain", "outdoors", "95.00"),
    ("Camp stove", "A small stove that boils a litre of water in four minutes", "outdoors", "64.50"),
]  # fmt: skip
NAMES = ["Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gina", "Hugo", "Ida", "Jon", "Kim", "Lea"]
CITIES = ["Ulm", "Bonn", "Jena", "Kiel", "Graz", "Bern"]


def create(server: str, shop: str) -> None:
    """Creates databases and tables, with products and customers, where there are none."""
    with psycopg.connect(server, autocommit=True) as one:
        there = {name for (name,) in one.execute("SELECT datname FROM pg_database")}
        for name in {"shop", "reports"} - there:
            one.execute(f"CREATE DATABASE {name}")
    with psycopg.connect(shop) as one:
        one.execute(SCHEMA)
        if one.execute("SELECT 1 FROM products LIMIT 1").fetchone() is None:
            chance, cursor = random.Random(1), one.cursor()
            insert = (
                "INSERT INTO products(name, description, category, price) VALUES (%s, %s, %s, %s)"
            )
            cursor.executemany(insert, PRODUCTS)
            who = [(name, chance.choice(CITIES)) for name in NAMES]
            cursor.executemany("INSERT INTO customers(name, city) VALUES (%s, %s)", who)


def trade(one: psycopg.Connection, chance: random.Random) -> None:
    """One transaction of the shop: mostly an order; now and then a price, a cancellation or a move."""
    with one.transaction():
        one.execute("SELECT pg_advisory_xact_lock_shared(%s)", (QUIET,))
        product = chance.randint(1, len(PRODUCTS))
        match chance.choices(["order", "price", "cancel", "move"], [90, 4, 4, 2])[0]:
            case "order":
                customer = chance.randint(1, len(NAMES))
                for quantity in [chance.randint(1, 3) for _ in range(chance.randint(1, 3))]:
                    one.execute(
                        "INSERT INTO orders(customer_id, product_id, quantity, price) "
                        "SELECT %s, id, %s, price FROM products WHERE id = %s",
                        (customer, quantity, chance.randint(1, len(PRODUCTS))),
                    )
            case "price":
                factor = chance.choice(["0.9", "1.1"])
                update = "UPDATE products SET price = round(price * %s::numeric, 2) WHERE id = %s"
                one.execute(update, (factor, product))
            case "cancel":
                newest = "SELECT id FROM orders ORDER BY id DESC LIMIT 1"
                one.execute(f"DELETE FROM orders WHERE id = ({newest})")
            case "move":
                update = "UPDATE customers SET city = %s WHERE id = %s"
                one.execute(update, (chance.choice(CITIES), chance.randint(1, len(NAMES))))


@contextlib.contextmanager
def trading(shop: str, per_second: float) -> Iterator[None]:
    """Trades meanwhile, so many times a second on average."""
    end, chance = threading.Event(), random.Random()

    def go_on() -> None:
        while not end.is_set():
            with contextlib.suppress(psycopg.OperationalError), psycopg.connect(shop) as one:
                while not end.wait(chance.expovariate(per_second)):
                    trade(one, chance)
            end.wait(1.0)

    thread = threading.Thread(target=go_on)
    if per_second > 0:
        thread.start()
    try:
        yield
    finally:
        end.set()
        if per_second > 0:
            thread.join()
