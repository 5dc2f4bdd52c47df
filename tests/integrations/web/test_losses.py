"""A database that goes away while a page is open, and comes back."""

from pathlib import Path

from sqlalchemy import make_url

from tests.support import sql
from tests.support.processes import wait_until


def test_a_file_that_goes_away_is_told_and_found_again(make_database_url, visit):
    url = make_database_url("sqlite", schema=True)
    browser = visit(url)
    path = Path(make_url(url).database)
    away = path.with_name("away.db")
    path.rename(away)
    page = browser.page
    assert page.goto(f"{browser.address}/").status == 503
    assert str(path) in page.inner_text("main")
    assert not path.exists()
    away.rename(path)
    page.click("text=Try again")
    assert "There are no buffers yet" in page.inner_text("main")


def test_a_server_that_goes_away_is_told_and_found_again(make_database_url, visit):
    url = make_database_url("postgresql", schema=True)
    browser = visit(url)
    name = make_url(url).database
    end = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    admin = make_url(url).set(database="postgres").render_as_string(hide_password=False)
    sql.run(admin, f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
    sql.run(admin, end.replace("current_database()", f"'{name}'"))
    page = browser.page
    assert page.goto(f"{browser.address}/").status == 503
    assert "Try again" in page.inner_text("main")
    sql.run(admin, f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')
    page.click("text=Try again")
    assert "There are no buffers yet" in page.inner_text("main")


def test_live_figures_go_on_after_a_loss(make_database_url, visit):
    url = make_database_url("postgresql", schema=True)
    browser = visit(url)
    page = browser.open("/")
    wait_until(lambda: page.inner_text("[data-live-note]") == "live", "live figures")
    sql.run(
        url,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()",
    )
    sql.run(url, "INSERT INTO buffers (name) VALUES ('later')")
    page.wait_for_selector("tr:has-text('later')")
