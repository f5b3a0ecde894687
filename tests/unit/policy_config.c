/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "policy/config/config.h"
#include "policy/fleet/settings/settings.h"

static struct cgn_err last;

static struct config *config_of(const char *toml, const char *const *env, const char *const *flags,
	size_t n_flags)
{
	struct config *c = NULL;
	last = (struct cgn_err){0};
	cgn_rc rc = settings_load("c.toml", cgn_str_of(toml), env, flags, n_flags, &c, &last);
	assert_true(cgn_ok(rc) == (c != NULL));
	if (!cgn_ok(rc)) {
		assert_int_equal(rc.code, last.code);
		assert_true(last.msg[0] != '\0');
	}
	return c;
}

static struct config *config_good(const char *toml)
{
	struct config *c = config_of(toml, NULL, NULL, 0);
	if (c == NULL)
		fail_msg("%s\n%s", toml, last.msg);
	return c;
}

#define FLAG(...) ((const char *const[]){__VA_ARGS__}), CGN_COUNT(((const char *const[]){__VA_ARGS__}))
#define ENV(...)  ((const char *const[]){__VA_ARGS__, NULL})

static void defaults_stand_alone(void **state)
{
	(void)state;
	struct config *c = config_good("");
	assert_string_equal(c->router.listen, "127.0.0.1:8080");
	assert_true(c->router.max_body == 64 << 20);
	assert_true(c->agent.heartbeat == 5 * CGN_SEC);
	assert_int_equal(c->router.retry.attempts, 3);
	assert_true(c->router.score_weights.kv > 0.549 && c->router.score_weights.kv < 0.551);
	assert_int_equal(c->cluster.state_backend, STATE_EMBEDDED);
	assert_int_equal(c->cluster.nodes.n, 0);
	assert_null(c->agent.advertise);
	assert_int_equal(c->n_engines, 0);
	assert_int_equal(c->n_models, 0);
	config_free(&c);
	config_free(&c);
}

static void a_gateway_without_keys_is_this_machines(void **state)
{
	(void)state;
	static const struct {
		const char *toml, *listen;
	} rows[] = {{"[auth]\nenabled = true\napi_keys_file = '/keys'\n", "0.0.0.0:8080"},
		{"[security]\ninsecure = true\n", "0.0.0.0:8080"},
		{"[auth]\napi_keys_file = '/keys'\n", "127.0.0.1:8080"},
		{"[security]\nrequire_mtls = true\nca_file = 'a'\ncert_file = 'b'\nkey_file = 'c'\n",
			"127.0.0.1:8080"},
		{"[router]\nlisten = '0.0.0.0:8080'\n", "0.0.0.0:8080"}};
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		struct config *c = config_good(rows[i].toml);
		assert_string_equal(c->router.listen, rows[i].listen);
		config_free(&c);
	}
}

static void every_kind_is_read_from_toml(void **state)
{
	(void)state;
	struct config *c = config_good(
		"[cluster]\nnodes = ['a:1', \"b:2\"]\nstate_backend = 'static'\n"
		"[security]\nca_file = '/ca'\n[auth]\nenabled = true\napi_keys_file = '/k'\n"
		"[router]\nlisten_http = '[::1]:80'\nmax_body = 4096\nmax_inflight_body = '2GB'\nhead_timeout = '250ms'\n"
		"[router.score_weights]\nkv = 1\nload = 0.0\npower = 0\ncapacity = 0e0\n[router.retry]\nattempts = 16\n");
	assert_int_equal(c->cluster.nodes.n, 2);
	assert_string_equal(c->cluster.nodes.v[1], "b:2");
	assert_null(c->cluster.nodes.v[2]);
	assert_int_equal(c->cluster.state_backend, STATE_STATIC);
	assert_true(c->auth.enabled);
	assert_string_equal(c->router.listen, "[::1]:80");
	assert_true(c->router.max_body == 4096);
	assert_true(c->router.max_inflight_body == 2000000000);
	assert_true(c->router.head_timeout == 250 * CGN_MSEC);
	assert_int_equal(c->router.retry.attempts, 16);
	config_free(&c);
}

static void sizes_by_their_alias_in_gib(void **state)
{
	(void)state;
	struct config *c = config_good("[kv]\nram_gib = 2\nssd_gib = 0\n");
	assert_true(c->kv.ram == 2ULL << 30 && c->kv.ssd == 0);
	config_free(&c);
	c = config_good("[kv]\nram = 16777216\nssd_gib = '3TiB'\nssd_admission = 'all'\n");
	assert_true(c->kv.ram == 16777216 && c->kv.ssd == 3ULL << 40);
	assert_int_equal(c->kv.ssd_admission, SSD_ALL);
	config_free(&c);
}

static void later_sources_win(void **state)
{
	(void)state;
	const char *toml = "[router]\nlisten = 'file:1'\nlisten_grpc = 'file:2'\nlisten_admin = 'file:3'\n";
	struct config *c = config_of(toml,
		ENV("PATH=/bin", "COGNITORA__ROUTER__LISTEN_GRPC=env:2",
			"COGNITORA__ROUTER__LISTEN_ADMIN=env:3", "COGNITORA_OTHER=x",
			"COGNITORA__ROUTER__RETRY__ATTEMPTS=9"),
		FLAG("router.listen_admin=flag:3", "router.listen_admin=flag:4"));
	assert_non_null(c);
	assert_string_equal(c->router.listen, "file:1");
	assert_string_equal(c->router.listen_grpc, "env:2");
	assert_string_equal(c->router.listen_admin, "flag:4");
	assert_int_equal(c->router.retry.attempts, 9);
	struct cgn_buf b = {0};
	config_print(c, &b);
	const char *text = cgn_buf_z(&b);
	assert_non_null(strstr(text, "\nlisten = \"file:1\""));
	assert_non_null(strstr(text, "# c.toml:2:10\n"));
	assert_non_null(strstr(text, "# COGNITORA__ROUTER__LISTEN_GRPC\n"));
	assert_non_null(strstr(text, "# --set router.listen_admin\n"));
	assert_non_null(strstr(text, "# default\n"));
	cgn_buf_fini(&b);
	config_free(&c);
}

static void engines_in_all_spellings(void **state)
{
	(void)state;
	struct config *c = config_good(
		"[engine]\nkind = 'llama_cpp'\nmanaged = true\n[engine.llama_cpp]\nn_ctx = 512\nextra_args = ['-a', 'b,c']\n");
	assert_int_equal(c->n_engines, 1);
	assert_int_equal(c->engines[0].kind, ENGINE_LLAMA_CPP);
	assert_int_equal(c->engines[0].n_ctx, 512);
	assert_string_equal(c->engines[0].name, "llama_cpp");
	assert_string_equal(c->engines[0].extra_args.v[1], "b,c");
	assert_true(c->engines[0].ready_timeout == 600 * CGN_SEC);
	config_free(&c);
	c = config_good(
		"[[engines]]\nkind = 'sim'\n[[engines]]\nkind='sim'\nurl = 'http://h:2'\n[engines.sim]\nslots = 2\n[[engines]]\nname='x'\n");
	assert_int_equal(c->n_engines, 3);
	assert_string_equal(c->engines[0].name, "sim");
	assert_string_equal(c->engines[1].name, "sim-2");
	assert_string_equal(c->engines[2].name, "x");
	assert_int_equal(c->engines[1].slots, 2);
	assert_int_equal(c->engines[2].kind, ENGINE_OPENAI_COMPAT);
	config_free(&c);
	c = config_of("", ENV("COGNITORA__ENGINE__KIND=sim", "COGNITORA__ENGINE__EXTRA_ARGS=[\"a,b\", 'c']"),
		FLAG("engine.sim.slots=3", "engines.1.url=http://127.0.0.1:1", "engines.0.model=m"));
	assert_non_null(c);
	assert_int_equal(c->n_engines, 2);
	assert_int_equal(c->engines[0].slots, 3);
	assert_string_equal(c->engines[0].extra_args.v[0], "a,b");
	assert_string_equal(c->engines[0].model, "m");
	config_free(&c);
}

static void models_are_found_by_name_and_alias(void **state)
{
	(void)state;
	struct config *c = config_good(
		"[models.\"org/Big-1.5\"]\naliases = ['big', 'gpt-4']\nblock_bytes = 64\n[models.small]\n");
	assert_int_equal(c->n_models, 2);
	assert_ptr_equal(config_model_find(c, "gpt-4"), config_model_find(c, "org/Big-1.5"));
	assert_int_equal(config_model_find(c, "big")->block_bytes, 64);
	assert_int_equal(config_model_find(c, "small")->block_bytes, 256);
	assert_null(config_model_find(c, "Big"));
	config_free(&c);
	c = config_of("[models.m]\n", NULL, FLAG("models.\"a.b\".aliases=x, y", "models.m.block_bytes=32"));
	assert_non_null(c);
	assert_int_equal(config_model_find(c, "m")->block_bytes, 32);
	assert_string_equal(config_model_find(c, "y")->name, "a.b");
	config_free(&c);
}

static void tenants_have_rows(void **state)
{
	(void)state;
	struct config *c = config_of("[tenants.acme]\nweight = 4\n[tenants.\"-\"]\nmax_priority = 0\n", NULL,
		FLAG("tenants.acme.max_priority=3", "tenants.new.weight=2"));
	assert_non_null(c);
	assert_int_equal(c->n_tenants, 3);
	assert_string_equal(c->tenants[0].name, "-"); /* Keys of a file are sorted. */
	assert_int_equal(c->tenants[0].max_priority, 0);
	assert_string_equal(c->tenants[1].name, "acme");
	assert_int_equal(c->tenants[1].weight, 4);
	assert_int_equal(c->tenants[1].max_priority, 3);
	assert_string_equal(c->tenants[2].name, "new");
	assert_int_equal(c->any_tenant.weight, 1);
	struct cgn_buf text = {0}, diff = {0};
	config_print(c, &text);
	struct config *again = config_good(cgn_buf_z(&text));
	assert_int_equal(again->n_tenants, 3);
	assert_int_equal(again->tenants[1].max_priority, 3);
	struct config *none = config_good("");
	config_needs_restart(c, none, &diff);
	assert_int_equal(diff.n, 0); /* The settings are reloadable. */
	config_free(&none);
	config_free(&again);
	config_free(&c);
	cgn_buf_fini(&text);
}

/* The settings that run are shown with those that wait for a restart, for each engine. */
static void engines_that_run_are_shown(void **state)
{
	(void)state;
	struct config
		*boot = config_good(
			"[[engines]]\nname = 'a'\nkind = 'sim'\n[[engines]]\nname = 'b'\nkind = 'sim'\n"),
		*one = config_good("[[engines]]\nname = 'a'\nkind = 'sim'\n");
	struct cgn_buf text = {0};
	config_print_running(boot, boot, &text);
	struct config *again = config_good(cgn_buf_z(&text));
	assert_int_equal(again->n_engines, 2);
	assert_string_equal(again->engines[1].name, "b");
	assert_null(strstr(cgn_buf_z(&text), "PENDING"));
	config_free(&again);
	text.n = 0;
	config_print_running(boot, one, &text);
	assert_non_null(strstr(cgn_buf_z(&text), "# PENDING until restart: 1 engines instead of 2"));
	again = config_good(cgn_buf_z(&text));
	assert_int_equal(again->n_engines, 2);
	config_free(&again);
	config_free(&one);
	config_free(&boot);
	cgn_buf_fini(&text);
}

/* An invalid text, and fragments that the message must have. */
static const struct {
	const char *toml, *says[3];
} bad[] = {
	{"[router]\nlisten = 'a:1'\nlisen = 'b'\n",
		{"c.toml:3:1: unknown key router.lisen", "did you mean router.listen?"}},
	{"[router.retry]\ntries = 2\n",
		{"c.toml:2:1", "unknown key router.retry.tries", "known here: attempts, backoff"}},
	{"[server]\nmax_body = 5\n",
		{"c.toml:1:2: unknown key server",
			"known sections: cluster, security, auth, log, router, batch, hooks, agent, kv, operator, metrics, engine, engines, models, tenants, bmcs, scrape_targets"}},
	{"[kv]\nblock_size_tokens = 16\n",
		{"c.toml:2:1: unknown key kv.block_size_tokens; it is [models.\"NAME\"] block_tokens now"}},
	{"[models.m]\npath = '/m'\n", {"unknown key models.m.path; it is [engine] model_path now"}},
	{"[router.federation]\npeers = ['a']\n", {"unknown key router.federation.peers; each peer has"}},
	{"[router]\nheartbeat = '5s'\n", {"unknown key router.heartbeat", "did you mean agent.heartbeat?"}},
	{"[kv]\nfoo = 5\n", {"unknown key kv.foo; known here: ram, ssd"}}, /* The suggestion is not kv.ram. */
	{"[tenants.a]\nwieght = 2\n", {"c.toml:2:1", "unknown key tenants.a.wieght; did you mean weight?"}},
	{"[tenants.a]\nweight = 0\n", {"c.toml:2:10", "a whole number from 1 to 1000"}},
	{"[tenants]\na = 1\n", {"c.toml:2:1", "must be written [tenants.\"NAME\"]"}},
	{"[tenants.\"a b\"]\n", {"visible ASCII characters only"}},
	{"[router.rate_limit]\nredis_url = 'h:1'\n",
		{"c.toml:2:13: router.rate_limit.redis_url must begin with redis://"}},
	{"[routr]\n", {"unknown key routr"}},
	{"router = 5\n", {"c.toml:1:1", "router is a whole number, must be a table: [router]"}},
	{"[router.listen]\n",
		{"router.listen is a table, must be an address HOST:PORT of at most 256 bytes"}},
	{"[[router]]\n", {"router is a list, must be a table"}},
	{"\"router.listen\" = 'a:1'\n", {"unknown key \"router.listen\""}},
	{"[router]\nlisten = 8080\n", {"c.toml:2:10: router.listen is a whole number, must be an address"}},
	{"[router]\nlisten = ''\n",
		{"router.listen is \"\", must be an address HOST:PORT of at most 256 bytes"}},
	{"[kv]\nram = '1GiB'\nram_gib = 1\n", {"kv.ram_gib is given twice"}},
	{"[router]\nlisten = 'a:1'\nlisten_http = 'b:1'\n",
		{"router.listen_http is given twice, also at c.toml:2:10"}},
	{"[router]\nlisten = 'nowhere'\n", {"c.toml:2:10: router.listen is \"nowhere\", must be host:port"}},
	{"[router]\nlisten = 'h:99999'\n", {"router.listen is \"h:99999\""}},
	{"[router]\nlisten = \"a\\u0000b:1\"\n", {"router.listen is \"a?b:1\""}},
	{"[router]\nlisten = \"\\u001b[2Jb:1\"\n", {"router.listen is \"?[2Jb:1\""}},
	{"[router]\nmax_body = '12 apples'\n",
		{"router.max_body is \"12 apples\", must be a size from \"1KiB\" to \"1GiB\", such as \"64MiB\""}},
	{"[router]\nmax_body = '99999999999999999999GiB'\n", {"router.max_body is", "must be a size"}},
	{"[router]\nmax_body = '17179869184GiB'\n", {"router.max_body is", "must be a size"}},
	{"[router]\nmax_body = -1\n", {"router.max_body is \"-1\""}},
	{"[router]\nmax_body = 1.5\n", {"router.max_body is a number"}},
	{"[router]\nhead_timeout = 5\n",
		{"router.head_timeout is a whole number, must be a duration from \"100ms\" to \"10m\", such as \"250ms\""}},
	{"[router]\nhead_timeout = '5'\n", {"router.head_timeout is \"5\""}},
	{"[router]\nhead_timeout = '99ms'\n", {"router.head_timeout is \"99ms\""}},
	{"[router]\nhead_timeout = '5124095576030432h'\n", {"must be a duration"}},
	{"[router]\nworker_threads = 257\n",
		{"router.worker_threads is \"257\", must be a whole number from 0 to 256"}},
	{"[router]\nworker_threads = 4294967296\n", {"worker_threads"}},
	{"[router]\nworker_threads = '4'\n", {"worker_threads is a text"}},
	{"[router.score_weights]\nkv = inf\n", {"kv is \"inf\"", "a number from 0 to 1"}},
	{"[router.score_weights]\nkv = nan\n", {"a number from 0 to 1"}},
	{"[router.score_weights]\nkv = 0.9\n", {"kv (c.toml:2:6)", "load (default)", "is 1.35, must be 1.0"}},
	{"[auth]\nenabled = 'yes'\n", {"auth.enabled is a text, must be true or false"}},
	{"[auth]\nenabled = true\n", {"c.toml:2:11: auth.enabled needs auth.api_keys_file"}},
	{"[agent]\nrole = 'all'\n",
		{"agent.role is \"all\", must be one of \"both\", \"prefill\", \"decode\""}},
	{"[agent]\nadvertise = '0.0.0.0:7080'\n", {"agent.advertise is \"0.0.0.0:7080\""}},
	{"[agent]\nadvertise = '[::]:7080'\n", {"agent.advertise"}},
	{"[agent]\nheartbeat = '5s'\n[cluster]\nlease = '15s'\n[agent.x]\n", {"unknown key agent.x"}},
	{"[agent]\nheartbeat = '6s'\n",
		{"c.toml:2:13: agent.heartbeat must be at most a third of cluster.lease (default)"}},
	{"[cluster]\nstate_backend = 'etcd'\n", {"c.toml:2:17", "needs cluster.etcd_endpoints"}},
	{"[agent]\nmax_loaded = 1\n[engine]\nkind = 'sim'\nmanaged = true\n",
		{"is loaded on demand", "and has no model"}},
	{"[engine]\nkind = 'sim'\nmodel = 'm'\nkeep_alive = '5m'\n",
		{"c.toml:4:14: keep_alive is for managed engines"}},
	{"[agent]\nmax_loaded = 1\n[engine]\nkind = 'sim'\nmanaged = true\nmodel = 'm'\norphan_time = '1m'\n",
		{"c.toml:7:15: engine \"sim\" is loaded on demand", "orphan_time must be 0"}},
	{"[agent]\nmemory = '8GiB'\n[engine]\nkind = 'sim'\nmanaged = true\nmodel = 'm'\nmemory = '9GiB'\n",
		{"more than agent.memory, 8589934592: it could never be loaded"}},
	{"[cluster]\netcd_endpoints = ['h:2379']\n", {"etcd_endpoints has \"h:2379\", must be http://"}},
	{"[cluster]\nstate_backend = 'static'\n", {"needs cluster.nodes"}},
	{"[engine]\nkv_events = '127.0.0.1:5557'\n",
		{"c.toml:2:13: engine kv_events is \"127.0.0.1:5557\", must be tcp://host:port, ipc:///path or none"}},
	{"[engine]\nkv_events = 'tcp://127.0.0.1'\n", {"must be tcp://host:port"}},
	{"[engine]\nkv_events = 'tcp://h:1'\nkv_events_replay = 'udp://h:2'\n",
		{"engine kv_events_replay is \"udp://h:2\""}},
	{"[engine]\nkv_events_replay = 'tcp://h:2'\n", {"engine kv_events_replay needs kv_events"}},
	{"[engine]\nkv_events_ranks = 0\n", {"kv_events_ranks"}},
	{"[engine]\nkv_events_lora = 'name'\n", {"must be one of \"model\", \"path\""}},
	{"[cluster]\nnodes = 'a:1'\n", {"cluster.nodes is a text, must be a list of at most 4096 texts"}},
	{"[cluster]\nnodes = ['a:1', 2]\n",
		{"c.toml:2:17: cluster.nodes[1] is a whole number, must be a text"}},
	{"[cluster]\nnodes = [['a:1']]\n", {"cluster.nodes[0] is a list, must be a text"}},
	{"[cluster]\nnodes = ['a']\n", {"cluster.nodes is \"a\", must be host:port"}},
	{"[cluster]\netcd_endpoints = ['','','','','','','','','','','','','','','','','']\n",
		{"is a list of 17, must be a list of at most 16"}},
	{"[security]\ncert_file = 'c'\n", {"security.cert_file is set and security.key_file is not"}},
	{"[security]\nrequire_mtls = true\n", {"security.require_mtls needs security.ca_file"}},
	{"[router]\ntls_key_file = 'c'\n", {"router.tls_key_file is set and router.tls_cert_file is not"}},
	{"[engine]\n[[engines]]\n", {"c.toml:2:3: [engine] and [[engines]] exclude each other"}},
	{"engine = 5\n", {"engine is a whole number, must be written [engine]"}},
	{"[engines]\n", {"engines is a table, must be written [[engines]]"}},
	{"engines = [1]\n", {"engines[0] is a whole number, must be written [[engines]]"}},
	{"[engine]\nkind = 'ollama'\n",
		{"engine.kind is \"ollama\", must be one of \"vllm\", \"sglang\", \"trtllm\""}},
	{"[engine]\nkind = 'sim'\n[engine.llama_cpp]\nn_ctx = 1\n",
		{"a table for llama_cpp, but the engine's kind is sim (c.toml:2:8)"}},
	{"[engine.llama_cpp]\n[engine.sim]\n", {"an engine has one kind"}},
	{"[engine]\nkind = 'sim'\nslots = 1\n[engine.sim]\nslots = 2\n",
		{"slots is given twice, also at", "c.toml:5:9", "c.toml:3:9"}},
	{"[engine]\nsim = 3\n", {"unknown key engine.sim"}},
	{"[engine]\nn_ctxt = 3\n", {"unknown key engine.n_ctxt", "did you mean n_ctx?"}},
	{"[engine]\nmanaged = true\n", {"c.toml:2:11: managed = true is not for kind openai_compat"}},
	{"[engine]\nurl = 'ftp://somewhere'\n", {"engine url must be http://"}},
	{"[[engines]]\nname='a'\n[[engines]]\nname='a'\n", {"c.toml:4:6: two engines are called \"a\""}},
	{"[[engines]]\nname='a.b'\n[[engines]]\nname='a_b'\n",
		{"c.toml:4:6: the engines \"a.b\" and \"a_b\" would have the same files"}},
	{"[[engines]]\nname='a/b'\n[[engines]]\nname='x'\n[[engines]]\nname='a b'\n",
		{"c.toml:6:6: the engines \"a/b\" and \"a b\" would have the same files"}},
	{"[models]\nm = 5\n", {"models.m is a whole number, must be written [models.\"NAME\"]"}},
	{"[models.\"\"]\n", {"a model's name has 1 to 256 bytes"}},
	{"[models.\"a\\u0007\"]\n", {"a model's name"}},
	{"[models.m]\nalias = []\n", {"c.toml:2:1: unknown key models.m.alias", "did you mean aliases?"}},
	{"[models.a]\naliases = ['x']\n[models.b]\naliases = ['x']\n",
		{"\"x\" names model \"b\" and model \"a\""}},
	{"[models.a]\naliases = ['b']\n[models.b]\n", {"\"b\" names model"}},
	{"[models.b]\naliases = ['a']\n[models.a]\n", {"\"a\" names model"}},
	{"[models.a]\naliases = ['a']\n", {"\"a\" names model"}},
	{"[models.a]\naliases = ['b', 'b']\n", {"an alias is given once"}},
	{"[hooks]\nbefore_url = 'policy:80'\n",
		{"c.toml:2", "hooks.before_url is \"policy:80\"", "http://HOST"}},
	{"[hooks]\nafter_url = 'https://'\n", {"hooks.after_url"}},
	{"[hooks]\non_failure = 'open'\n", {"hooks.on_failure", "\"deny\", \"allow\""}},
	{"[hooks]\nmax_body = '4KiB'\nafter_window = '8KiB'\n",
		{"c.toml:3", "hooks.after_window", "hooks.max_body"}},
	{"[router\n", {"c.toml:1:"}},
	{"[router]\nlisten = 'a:1'\nlisten = 'b:1'\n", {"c.toml:3:"}},
};

static void each_mistake_is_named_with_its_place(void **state)
{
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(bad); i++) {
		struct config *c = config_of(bad[i].toml, NULL, NULL, 0);
		if (c != NULL)
			fail_msg("accepted: %s", bad[i].toml);
		assert_int_equal(last.code, CGN_INVALID);
		for (size_t j = 0; j < CGN_COUNT(bad[i].says) && bad[i].says[j] != NULL; j++)
			if (strstr(last.msg, bad[i].says[j]) == NULL)
				fail_msg("%s\nsaid:   %s\nwanted: %s", bad[i].toml, last.msg, bad[i].says[j]);
	}
}

static void expect_refused(const char *toml, const char *const *env, const char *flag, const char *say)
{
	struct config *c = config_of(toml, env, &flag, flag != NULL);
	if (c != NULL)
		fail_msg("accepted: %s", flag != NULL ? flag : env[0]);
	if (strstr(last.msg, say) == NULL)
		fail_msg("said:   %s\nwanted: %s", last.msg, say);
}

static void environment_and_flags_are_as_strict(void **state)
{
	(void)state;
	expect_refused("", ENV("COGNITORA__ROUTER__LISEN=x"), NULL,
		"COGNITORA__ROUTER__LISEN: unknown key router.lisen; did you mean router.listen?");
	expect_refused("", ENV("COGNITORA__=x"), NULL, "COGNITORA__: unknown key");
	expect_refused("", ENV("COGNITORA__A__B__C__D__E__F__G__H__I__J=x"), NULL, "unknown key");
	expect_refused("", ENV("COGNITORA__ROUTER__LISTEN=a:1", "COGNITORA__ROUTER__LISTEN_HTTP=b:1"), NULL,
		"also by COGNITORA__ROUTER__LISTEN");
	expect_refused("", ENV("COGNITORA__ROUTER__WORKER_THREADS=many"), NULL,
		"must be a whole number from 0 to 256");
	expect_refused("", ENV("COGNITORA__ROUTER__LISTEN="), NULL,
		"must be an address HOST:PORT of at most 256 bytes");
	expect_refused("", ENV("COGNITORA__MODELS__M__BLOCK_BYTES=64"), NULL,
		"models cannot be set from the environment");
	expect_refused("", ENV("COGNITORA__TENANTS__A__WEIGHT=2"), NULL,
		"tenants cannot be set from the environment");
	expect_refused("", ENV("COGNITORA__ENGINES__1__URL=http://h:1"), NULL, "engines are numbered");
	expect_refused("", ENV("COGNITORA__ENGINES__X__URL=http://h:1"), NULL, "engines are numbered");
	expect_refused("[[engines]]\n[[engines]]\n", ENV("COGNITORA__ENGINE__URL=http://h:1"), NULL,
		"there are 2 engines: say which");
	expect_refused("", NULL, "router.listen", "must be section.key=value");
	expect_refused("", NULL, "=x", "must be section.key=value");
	expect_refused("", NULL, "router..listen=x", "must be section.key=value");
	expect_refused("", NULL, "\"router=x", "must be section.key=value");
	expect_refused("", NULL, "router.lisen=x", "--set router.lisen: unknown key router.lisen");
	expect_refused("", NULL, "engine=x", "unknown key engine");
	expect_refused("", NULL, "engines.0=x", "unknown key engines.0");
	expect_refused("", NULL, "models.m=x", "unknown key models.m");
	expect_refused("", NULL, "router.score_weights.kv=0x1", "a number from 0 to 1");
	expect_refused("", NULL, "router.score_weights.kv=", "a number from 0 to 1");
	expect_refused("", NULL, "cluster.nodes=[\"a:1\"", "--set cluster.nodes");
	expect_refused("", NULL, "cluster.nodes=[1]", "--set cluster.nodes");
	expect_refused("", NULL, "cluster.nodes=[]\nx=1", "--set cluster.nodes");
	expect_refused("", NULL, "engine.llama_cpp.n_ctx=5",
		"a table for llama_cpp, but the engine's kind is openai_compat (default)");
}

static void an_empty_text_takes_a_value_back(void **state)
{
	(void)state;
	struct config *c = config_of("[agent]\nadvertise = 'h:1'\n[cluster]\nnodes = ['a:1']\n",
		ENV("COGNITORA__AGENT__ADVERTISE=", "COGNITORA__CLUSTER__NODES="), NULL, 0);
	assert_non_null(c);
	assert_null(c->agent.advertise);
	assert_int_equal(c->cluster.nodes.n, 0);
	config_free(&c);
}

static void what_is_printed_reads_back_the_same(void **state)
{
	(void)state;
	struct config *c =
		config_good("[cluster]\nname = 'a\"b\\c/\u00e9'\nnodes = ['x:1', 'y:2']\nlease = '90500ms'\n"
			    "[router]\nmax_body = 1048577\nmax_inflight_body = '3MB'\ndrain_timeout = '0s'\n"
			    "[[engines]]\nkind = 'sim'\nextra_args = ['--a=\"b\"', '']\n[[engines]]\n"
			    "[models.\"a\\\"b.c\"]\naliases = ['z']\n");
	struct cgn_buf one = {0}, two = {0}, diff = {0};
	config_print(c, &one);
	struct config *again = config_good(cgn_buf_z(&one));
	assert_true(again->router.max_body == 1048577);
	assert_string_equal(again->cluster.name, c->cluster.name);
	assert_string_equal(again->engines[0].extra_args.v[0], "--a=\"b\"");
	assert_string_equal(config_model_find(again, "z")->name, "a\"b.c");
	config_needs_restart(c, again, &diff);
	assert_int_equal(diff.n, 0);
	config_print(again, &two);
	struct config *third = config_good(cgn_buf_z(&two));
	config_free(&third);
	config_free(&again);
	config_free(&c);
	cgn_buf_fini(&one);
	cgn_buf_fini(&two);
}

static void passwords_are_not_printed(void **state)
{
	(void)state;
	static const struct {
		const char *url, *shown;
	} rows[] = {
		{"redis://ann:s3cret@h:1/2", "redis_url = \"redis://ann:***@h:1/2\""},
		{"rediss://:p@ss:word@h", "redis_url = \"rediss://:***@h\""},
		{"redis://:x@h", "redis_url = \"redis://:*@h\""},
		{"redis://h:6379/1", "redis_url = \"redis://h:6379/1\""},
		{"unix:/run/a@b:c", "redis_url = \"unix:/run/a@b:c\""},
	};
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		struct cgn_buf toml = {0}, out = {0};
		cgn_buf_fmt(&toml, "[router.rate_limit]\nredis_url = '%s'\n", rows[i].url);
		struct config *c = config_good(cgn_buf_z(&toml));
		config_print(c, &out);
		if (strstr(cgn_buf_z(&out), rows[i].shown) == NULL)
			fail_msg("%s: not %s", rows[i].url, rows[i].shown);
		config_free(&c);
		cgn_buf_fini(&toml);
		cgn_buf_fini(&out);
	}
}

static void restarts_are_named(void **state)
{
	(void)state;
	struct config *a = config_good("[router]\nmax_body = 4096\n[engine]\n[models.m]\n");
	struct config *b = config_good(
		"[router]\nmax_body = 8192\nlisten = 'h:1'\n[agent]\nrole = 'decode'\n[engine]\nurl = 'http://h:1'\n");
	struct config *d = config_good("");
	struct cgn_buf out = {0};
	config_needs_restart(a, b, &out);
	assert_string_equal(cgn_buf_z(&out), "router.listen, agent.role, engines.0.url");
	cgn_buf_fini(&out);
	config_needs_restart(a, d, &out);
	assert_string_equal(cgn_buf_z(&out), "engines");
	cgn_buf_fini(&out);
	config_free(&a);
	config_free(&b);
	config_free(&d);
}

static void numbers_of_engines_and_models_are_bounded(void **state)
{
	(void)state;
	struct cgn_buf toml = {0};
	for (unsigned i = 0; i < 65; i++)
		cgn_buf_putz(&toml, "[[engines]]\n");
	assert_null(config_of(cgn_buf_z(&toml), NULL, NULL, 0));
	assert_non_null(strstr(last.msg, "more than 64 engines"));
	cgn_buf_fini(&toml);
	for (unsigned i = 0; i < 1025; i++)
		cgn_buf_fmt(&toml, "[models.m%u]\n", i);
	assert_null(config_of(cgn_buf_z(&toml), NULL, NULL, 0));
	assert_non_null(strstr(last.msg, "more than 1024 models"));
	cgn_buf_fini(&toml);
	for (unsigned i = 0; i < 4097; i++)
		cgn_buf_fmt(&toml, "[tenants.t%u]\n", i);
	assert_null(config_of(cgn_buf_z(&toml), NULL, NULL, 0));
	assert_non_null(strstr(last.msg, "more than 4096 tenants"));
	cgn_buf_fini(&toml);
}

static void the_reference_has_every_key(void **state)
{
	(void)state;
	struct cgn_buf b = {0};
	config_reference(&b);
	const char *text = cgn_buf_z(&b);
	assert_non_null(strstr(text, "## `[router.retry]`"));
	assert_non_null(strstr(text,
		"| [`attempts`](../fleet/failures/retries.md) | `3` | a whole number from 1 to 16 | yes | most nodes tried for one request, before its first byte and to resume it |"));
	assert_non_null(strstr(text,
		"| [`listen`](../laptop/ports.md) | `\"0.0.0.0:8080\"` | an address HOST:PORT of at most 256 bytes | restart |"));
	assert_non_null(strstr(text, "| [`extra_args`](../fleet/engines/README.md) | `[]` |"));
	size_t rows = 0;
	for (const char *p = text; (p = strstr(p, "\n| [`")) != NULL; p++)
		rows++;
	size_t keys = 0;
#define KEY(...) keys++;
#include "policy/config/bmc_keys.def"
#include "policy/config/claim_keys.def"
#include "policy/config/engine_keys.def"
#include "policy/config/engine_node_keys.def"
#include "policy/config/inference_pool_keys.def"
#include "policy/config/keys.def"
#include "policy/config/kv_site_keys.def"
#include "policy/config/model_keys.def"
#include "policy/config/peer_keys.def"
#include "policy/config/price_keys.def"
#include "policy/config/role_keys.def"
#include "policy/config/scrape_target_keys.def"
#include "policy/config/tenant_keys.def"
#undef KEY
	assert_int_equal(rows, keys);
	cgn_buf_fini(&b);
}

/* Expect |section|, the text behind "## " of the reference, to begin with an example that is a valid configuration. */
static void expect_example(struct cgn_str section)
{
	static const char open[] = "\n\n```toml\n", shut[] = "\n```";
	struct cgn_str title = cgn_str_split(&section, '\n');
	const char *p = title.p + title.n, *end = strstr(p + 1, shut);
	if (strncmp(p, open, sizeof open - 1) != 0 || end == NULL)
		fail_msg("%.*s has no example: pages.def", (int)title.n, title.p);
	struct cgn_buf toml = {0};
	cgn_buf_add(&toml, p + sizeof open - 1, (size_t)(end - p) - (sizeof open - 1));
	struct config *c = config_of(cgn_buf_z(&toml), NULL, NULL, 0);
	if (c == NULL)
		fail_msg("the example of %.*s: %s", (int)title.n, title.p, last.msg);
	config_free(&c);
	cgn_buf_fini(&toml);
}

static void each_table_has_an_example_that_is_valid(void **state)
{
	(void)state;
	struct cgn_buf b = {0};
	config_reference(&b);
	size_t tables = 0;
	for (const char *p = cgn_buf_z(&b); (p = strstr(p, "\n## ")) != NULL; tables++) {
		p += 4;
		expect_example(cgn_str_of(p));
	}
	assert_int_equal(tables, 38);
	cgn_buf_fini(&b);
}

static void replicas_are_read(void **state)
{
	(void)state;
	struct config_replicas l = {9, 9};
	const char *wrong[] = {"", "1", "-", "1-", "-4", "4-2", "0-0", "1-4-5", "1 - 4", "a-b",
		"1-99999999999"};
	for (size_t i = 0; i < CGN_COUNT(wrong); i++)
		assert_false(config_replicas_read(cgn_str_of(wrong[i]), &l));
	assert_true(config_replicas_read(CGN_STR("0-4"), &l));
	assert_int_equal(l.least, 0);
	assert_int_equal(l.most, 4);
}

static void peers_are_checked(void **state)
{
	static const char url[] = "url = \"https://api.example/v1\"\n";
	struct cgn_str ours, theirs;
	(void)state;
	struct config *c = config_of("[peers.a]\nurl = \"http://127.0.0.1:1\"\nmodels = [\"m\", \"x = y\"]\n",
		NULL, NULL, 0);
	assert_int_equal(c->n_peers, 1);
	assert_int_equal(c->peers[0].tenants.n, 0);
	assert_true(config_peer_model_read(cgn_str_of(c->peers[0].models.v[0]), &ours, &theirs));
	assert_true(cgn_str_is(ours, "m") && cgn_str_is(theirs, "m"));
	assert_true(config_peer_model_read(cgn_str_of(c->peers[0].models.v[1]), &ours, &theirs));
	assert_true(cgn_str_is(ours, "x") && cgn_str_is(theirs, "y"));
	config_free(&c);
	expect_refused("[peers.a]\n", NULL, NULL, "peers.\"a\".url is not set, must begin with https://");
	expect_refused("[peers.a]\nurl = \"http://api.example\"\n", NULL, NULL, "must begin with https://");
	char text[200];
	snprintf(text, sizeof text, "[peers.a]\n%soutput = 1\n", url);
	expect_refused(text, NULL, NULL, "has a price and no daily_budget");
	snprintf(text, sizeof text, "[peers.a]\n%smodels = [\"a=\"]\n", url);
	expect_refused(text, NULL, NULL, "models has \"a=\", must be a model's name");
	snprintf(text, sizeof text, "[peers.\"a b\"]\n%s", url);
	expect_refused(text, NULL, NULL, "visible ASCII characters only");
	snprintf(text, sizeof text, "[models.m]\naliases = [\"x\"]\n[peers.a]\n%smodels = [\"x=y\"]\n", url);
	expect_refused(text, NULL, NULL, "an alias of the model \"m\": name the model itself");
	expect_refused("[peers.a]\nkind = \"cognitora\"\nurl = \"https://b:1\"\n", NULL, NULL,
		"is a cluster and needs ca_file");
	snprintf(text, sizeof text, "[peers.a]\n%saccepts = [\"*\"]\n", url);
	expect_refused(text, NULL, NULL, "these are for kind = \"cognitora\"");
}

static void a_cluster_shows_a_certificate_and_goes_one_way_at_least(void **state)
{
	static const char files[] =
		"[peers.a]\nkind = \"cognitora\"\nca_file = \"/a\"\ncert_file = \"/b\"\nkey_file = \"/c\"\n";
	char text[400];
	(void)state;
	expect_refused(files, NULL, NULL, "has no url and no listen");
	snprintf(text, sizeof text, "%surl = \"http://127.0.0.1:1\"\n", files);
	expect_refused(text, NULL, NULL, "clusters know each other by certificates");
	snprintf(text, sizeof text, "%slisten = \"127.0.0.1:1\"\n", files);
	struct config *c = config_of(text, NULL, NULL, 0);
	assert_int_equal(c->peers[0].accepts.n, 0);
	config_free(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(replicas_are_read),
		cmocka_unit_test(defaults_stand_alone),
		cmocka_unit_test(a_gateway_without_keys_is_this_machines),
		cmocka_unit_test(every_kind_is_read_from_toml),
		cmocka_unit_test(sizes_by_their_alias_in_gib),
		cmocka_unit_test(later_sources_win),
		cmocka_unit_test(engines_in_all_spellings),
		cmocka_unit_test(models_are_found_by_name_and_alias),
		cmocka_unit_test(tenants_have_rows),
		cmocka_unit_test(peers_are_checked),
		cmocka_unit_test(a_cluster_shows_a_certificate_and_goes_one_way_at_least),
		cmocka_unit_test(engines_that_run_are_shown),
		cmocka_unit_test(each_mistake_is_named_with_its_place),
		cmocka_unit_test(environment_and_flags_are_as_strict),
		cmocka_unit_test(an_empty_text_takes_a_value_back),
		cmocka_unit_test(what_is_printed_reads_back_the_same),
		cmocka_unit_test(passwords_are_not_printed),
		cmocka_unit_test(restarts_are_named),
		cmocka_unit_test(numbers_of_engines_and_models_are_bounded),
		cmocka_unit_test(the_reference_has_every_key),
		cmocka_unit_test(each_table_has_an_example_that_is_valid),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
