"""vllm-tables.json: which images are queried for their own flags, and how many tables are kept."""

from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.plans import shipped
from tests.unit.vllm_answers import ONE_FLAG, packed

from sparkd.base.host import Host
from sparkd.base.host.files import Files
from sparkd.base.recipes.schema import Container
from sparkd.base.state.file import LIMIT_BYTES
from sparkd.base.state.vllm_tables import FILE, IMAGES_KEPT, VllmTables, find_recipe_table, read_tables
from sparkd.base.vllm.flag import SHIPPED, FlagTable
from sparkd.base.vllm.own_table import EMPTY, MOST_BYTES, parse_answer

OWN = replace(SHIPPED, image="fork:1")


def record_images(table: FlagTable, count: int) -> VllmTables:
    tables = VllmTables()
    for number in range(count):
        tables = tables.record(str(number), table)
    return tables


def test_the_tables_of_the_last_images_are_kept_with_who_queried_them() -> None:
    tables = record_images(OWN, IMAGES_KEPT + 2)
    assert [*tables.tables] == [str(number) for number in range(2, IMAGES_KEPT + 2)]
    assert tables.queried_by.keys() == tables.tables.keys()


def test_what_was_written_is_read(tree: Tree) -> None:
    tables = record_images(OWN, 2)
    tree.file(FILE.path, FILE.encode(tables))
    assert read_tables(Files(str(tree.root))) == tables


def test_without_a_file_there_is_no_table(tree: Tree) -> None:
    assert read_tables(Files(str(tree.root))) == VllmTables()


def test_an_image_is_queried_once_and_one_without_an_answer_again_by_another_version() -> None:
    tables = VllmTables().record("silent", EMPTY).record("good", OWN)
    assert tables.is_queried("silent")
    assert not tables.is_queried("other")
    for queried_by in (dict.fromkeys(tables.tables, "0.0.9"), {}):
        earlier = replace(tables, queried_by=queried_by)
        assert not earlier.is_queried("silent")
        assert earlier.is_queried("good")


def test_an_image_that_gave_no_answer_is_named_with_the_command_that_queries_it_again() -> None:
    judged_by = replace(SHIPPED, unanswered="fork:1").judged_by
    assert "fork:1" in judged_by
    assert judged_by.endswith(f"  sudo rm {FILE.path}")


def test_the_images_own_table_judges_no_recipe_that_may_mount_another_vllm(tree: Tree) -> None:
    recipe, image = shipped("tiny-cpu"), {"Id": "sha256:1", "Architecture": "arm64", "Os": "linux", "Config": {}}
    tree.docker_engine()
    tree.docker(f"/images/{recipe.image.ref}/json", image)
    tree.file(FILE.path, FILE.encode(VllmTables().record("sha256:1", OWN)))
    assert find_recipe_table(Host(tree.root), recipe).image == recipe.image.ref
    volumes = ["/srv/vllm:/usr/lib/python3/dist-packages/vllm:ro"]
    mounting = recipe.model_copy(update={"container": Container.model_validate({"volumes": volumes})})
    table = find_recipe_table(Host(tree.root), mounting)
    assert not table.image
    assert table.judged_by.endswith(": a mount may bring another than the image's")
    own = recipe.model_copy(update={"container": Container.model_validate({"volumes": ["/srv/own:/srv/own:ro"]})})
    assert not find_recipe_table(Host(tree.root), own).mounted
    assert find_recipe_table(Host(tree.root), own, {"PYTHONPATH": "/srv/own/lib"}).mounted, "the settings' engine.env"


def test_the_largest_answers_fit_the_file() -> None:
    """Else images that answer so would take the tables of all others away."""
    choices = ["a"] * ((MOST_BYTES - 200) // 4)
    flags = [{"name": "max-model-len", "kind": "int", "choices": choices}]
    table = parse_answer(packed(ONE_FLAG | {"flags": flags}, (",", ":")), "fork:1")
    assert len(table.by_name["max-model-len"].choices) == len(choices)
    assert len(FILE.encode(record_images(table, IMAGES_KEPT))) < LIMIT_BYTES
