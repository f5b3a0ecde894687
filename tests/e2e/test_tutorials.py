# SPDX-License-Identifier: Apache-2.0
"""The pages that a reader follows command by command: each runs from its own text and prints what it says."""
import shutil
import subprocess

import pytest

from cluster import BUILD, ROOT, SANITIZER
from tutorials import Tutorial, steps, usable

PAGES = ["README.md", "docs/laptop/start.md", "docs/laptop/ports.md", "docs/fleet/start.md", "docs/fleet/routers.md", "docs/fleet/access/keys.md", "docs/fleet/traffic/batch.md",
         "docs/operate/lost-node.md"]

# Pages with single commands for somebody whose cluster runs: it is the one of scripts/up here, with the names that the pages use.
UP = """
scripts/up
export PATH="$PWD/build/release/bin:$PATH"
echo '{"model":"sim-8b","max_tokens":4,"messages":[{"role":"user","content":"Hello!"}]}' > request.json
curl -sf http://127.0.0.1:8080/v1/chat/completions -H 'X-Request-Id: REQUEST-ID' -d @request.json
"""
RUNNING = """
printf '[models."sim-8b"]\\naliases = ["sim"]\\n' >> recipes/quickstart/sim/agg/router.toml
""" + UP
# Every request but the first is refused, those of scripts/up too.
POOR = """
printf '[tenants."-"]\\nbudgets = ["1 requests/day"]\\n' >> recipes/quickstart/sim/agg/router.toml
""" + UP.replace("scripts/up", "scripts/up || true").replace("curl -sf", "curl -s")
CORDONED = RUNNING + """
cgn-ctl cluster cordon sim-a
cgn-ctl cluster cordon sim-b
until curl -s http://127.0.0.1:9091/nodes | grep -o '"cordoned":true' | wc -l | grep -q 2; do sleep 0.1; done
"""
TRACE = """
export PATH="$PWD/build/release/bin:$PATH"
cgn-ctl bench workload service --requests 200 --out trace.jsonl
"""
HOW_TO = {"docs/operate/429.md": POOR, "docs/operate/503.md": CORDONED, "docs/operate/cold-cache.md": RUNNING, "docs/operate/slow-first-token.md": RUNNING,
          "docs/fleet/autoscaling/README.md": RUNNING, "docs/fleet/failures/breaker.md": RUNNING, "docs/fleet/federation/bids.md": RUNNING,
          "docs/fleet/traffic/quotes.md": RUNNING, "docs/fleet/prefill-decode/ratio.md": TRACE}
# Pages whose blocks need what a namespace with one cluster of simulated engines has not.
NOT_HERE = {
    "the folders of an installed machine": [
        "docs/fleet/access/certificates.md", "docs/fleet/access/identity.md", "docs/fleet/access/join.md", "docs/operate/certificates.md", "docs/operate/disk-full.md",
        "docs/operate/doctor.md", "docs/fleet/install/systemd.md", "docs/fleet/install/packages.md"],
    "other machines, by their names": [
        "docs/fleet/access/usage.md", "docs/fleet/configure.md", "docs/fleet/energy/power.md", "docs/fleet/install/bare-metal.md", "docs/laptop/page.md",
        "docs/laptop/models-rest.md", "docs/fleet/traffic/selection.md", "docs/operate/start-stop.md"],
    "a provider, a collector or a registry": [
        "docs/fleet/access/oidc.md", "docs/fleet/federation/README.md", "docs/operate/tracing.md", "docs/laptop/models.md"],
    "containers, a cloud or Kubernetes": [
        "docs/fleet/access/hardening.md", "docs/fleet/install/clouds.md", "docs/fleet/install/containers.md", "docs/fleet/install/helm.md",
        "docs/fleet/install/inference-gateway.md", "docs/fleet/install/membership.md", "docs/fleet/install/operator.md", "docs/fleet/install/operator-inside.md"],
    "a real engine, or models": ["docs/fleet/recipes.md", "docs/fleet/traffic/cascade.md", "docs/laptop/lora.md", "docs/laptop/swap.md"],
    "tenants that hold something": ["docs/fleet/traffic/shares.md"],
    "minutes of a processor": ["docs/fleet/autoscaling/decision.md", "docs/fleet/energy/bench.md"]}
alone = pytest.mark.skipif(usable() is not None, reason=str(usable()))
pytestmark = [pytest.mark.plain, pytest.mark.skipif(bool(SANITIZER), reason="the pages start programs that leave no reports")]


@alone
@pytest.mark.parametrize("page", PAGES)
def test_the_page_does_what_it_says(page, tmp_path):
    tutorial = Tutorial(tmp_path, page)
    if page == "docs/fleet/routers.md" and shutil.which("haproxy") is None:
        pytest.skip("no haproxy: apt install haproxy")
    assert tutorial.blocks and tutorial.expected
    wrong = tutorial.wrong_output(tutorial.run())
    assert not wrong, "\n".join(wrong)


@alone
@pytest.mark.parametrize("page", HOW_TO)
def test_the_commands_of_a_page_work(page, tmp_path):
    tutorial = Tutorial(tmp_path, page, HOW_TO[page])
    assert tutorial.blocks
    for block, printed in zip(tutorial.blocks, tutorial.run()):
        assert printed.strip() and ('"error":' in printed) == (HOW_TO[page] == CORDONED), f"{page}: {block}printed\n{printed}"
        assert HOW_TO[page] != POOR or "x-cgn-refused-by: budget" in printed, f"{page}: {block}printed\n{printed}"


def test_each_page_with_commands_is_of_a_list():
    with_commands = {page for page in (str(p.relative_to(ROOT)) for part in ("laptop", "fleet", "operate") for p in ROOT.glob(f"docs/{part}/**/*.md"))
                     if any((kind, info) == ("sh", "") for kind, info, _ in steps(page))}
    listed = [*(p for p in PAGES if p.startswith("docs/")), *HOW_TO, *(p for pages in NOT_HERE.values() for p in pages)]
    assert sorted(listed) == sorted(with_commands)


@alone
def test_a_command_that_fails_fails_the_page(tmp_path):
    tutorial = Tutorial(tmp_path, PAGES[0])
    tutorial.blocks = ["echo before\n", "cgn-router --no-such-flag\n", "echo behind\n"]
    with pytest.raises(AssertionError, match="block 2 ended with"):
        tutorial.run()
    tutorial.blocks, tutorial.expected = ["echo one two\n"], {0: "one ...\n"}
    assert not tutorial.wrong_output(tutorial.run())
    tutorial.expected = {0: "two\n"}
    assert tutorial.wrong_output(tutorial.run())


def test_settings_in_documents_are_valid(tmp_path):
    """Each ```toml block without a file's name is a configuration that the programs take, but for the files that it names."""
    wrong, seen = [], 0
    for page in ("README.md", *sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/**/*.md"))):
        for kind, info, text in steps(page):
            if (kind, info) == ("toml", "") and "credential:" not in text:
                seen += 1
                (tmp_path / "c.toml").write_text(text)
                done = subprocess.run([BUILD / "src/ctl/cgn-ctl", "config", "check", tmp_path / "c.toml"], capture_output=True, text=True, timeout=20)
                wrong += [f"{page}: {done.stderr.strip()}\n{text}"] if done.returncode else []
    assert not wrong and seen > 80, "\n".join(wrong)
