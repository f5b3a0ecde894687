/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/weburl/weburl.h"
#include "policy/node/engine/change.h"
#include "policy/node/engine/engine.h"
#include "policy/node/engine/launch.h"
#include "policy/node/engine/models.h"
#include "policy/node/engine/tokens.h"

/* ---- command lines ---- */
static const char *argv_text(const struct engine_launch *p, char *out, size_t cap)
{
	size_t n = 0;
	out[0] = '\0';
	for (size_t i = 0; i < p->n_args; i++)
		n += (size_t)snprintf(out + n, cap - n, "%s%s", i > 0 ? " " : "", p->argv[i]);
	assert_null(p->argv[p->n_args]);
	return out;
}

static cgn_rc make_plan(const struct config_engine *e, struct cgn_arena *arena, struct engine_launch *p,
	struct cgn_err *err)
{
	struct weburl u;
	*p = (struct engine_launch){.arena = arena};
	assert_true(cgn_ok(weburl_parse(e->url, &u, NULL)));
	struct config cfg = {.agent = {.role = ROLE_BOTH, .gpu_index = "1,2"}};
	struct config_engine whole = *e;
	if (whole.kv_offload == 0)
		whole.kv_offload = OFFLOAD_NONE;
	if (whole.cache_ram == 0)
		whole.cache_ram = CONFIG_CACHE_RAM_AUTO;
	const struct engine_launch_ask ask = {.cfg = &cfg,
		.engine = &whole,
		.url = &u,
		.prefix = "/run/n.e",
		.host = "10.0.0.1",
		.slots_are_kept = true};
	return engine_launch_make(&ask, p, err);
}

static void llama_cpp_command_line(void **state)
{
	(void)state;
	struct cgn_arena arena;
	struct engine_launch p;
	char text[2048];
	static const char *const more[] = {"--flash-attn", "on"};
	struct config_engine e = {.kind = ENGINE_LLAMA_CPP,
		.url = "http://127.0.0.1:8001",
		.managed = true,
		.model_path = "/m/tiny.gguf",
		.slots = 4};
	cgn_arena_init(&arena, 65536);
	assert_true(cgn_ok(make_plan(&e, &arena, &p, NULL)));
	assert_string_equal(argv_text(&p, text, sizeof text),
		"llama-server --model /m/tiny.gguf --host 127.0.0.1 --port 8001 --n-gpu-layers 0 --parallel 4 --metrics --slots");
	assert_int_equal(p.port, 8001);
	assert_int_equal(p.n_env, 2);
	assert_string_equal(p.env[0], "LLAMA_ARG_CACHE_RAM=0");
	assert_string_equal(p.env[1], "CUDA_VISIBLE_DEVICES=1,2");
	assert_null(p.env[2]);
	e.binary = "/opt/llama-server";
	e.model = "tiny";
	e.n_ctx = 8192;
	e.n_threads = 6;
	e.n_gpu_layers = 99;
	e.slots = 2;
	e.slot_dir = "/var/slots";
	e.api_key_file = "/etc/key";
	e.extra_args = (struct config_list){more, 2};
	assert_true(cgn_ok(make_plan(&e, &arena, &p, NULL)));
	assert_string_equal(argv_text(&p, text, sizeof text),
		"/opt/llama-server --model /m/tiny.gguf --alias tiny --host 127.0.0.1 --port 8001 --ctx-size 8192 --threads 6 --n-gpu-layers 99 "
		"--parallel 2 --metrics --slots --slot-save-path /var/slots --api-key-file /etc/key --flash-attn on");
	cgn_arena_fini(&arena);
}

static void llama_keeps_prompts_in_ram_where_no_tenant_minds(void **state)
{
	(void)state;
	static const char *const on[] = {"--cache-ram", "512"}, *const off[] = {"-cram", "512", "-cram", "0"};
	struct config_engine e = {.kind = ENGINE_LLAMA_CPP,
		.url = "http://127.0.0.1:8001",
		.managed = true,
		.model_path = "/m/tiny.gguf",
		.cache_ram = CONFIG_CACHE_RAM_ON};
	struct cgn_arena arena;
	struct engine_launch p;
	cgn_arena_init(&arena, 65536);
	assert_true(cgn_ok(make_plan(&e, &arena, &p, NULL)));
	assert_true(engine_caches_in_ram(&p));
	e.extra_args = (struct config_list){off, 4};
	assert_true(cgn_ok(make_plan(&e, &arena, &p, NULL)));
	assert_false(engine_caches_in_ram(&p));
	e.cache_ram = CONFIG_CACHE_RAM_OFF;
	e.extra_args = (struct config_list){on, 2};
	assert_true(cgn_ok(make_plan(&e, &arena, &p, NULL)));
	assert_true(engine_caches_in_ram(&p));
	e.extra_args.n = 0;
	assert_true(cgn_ok(make_plan(&e, &arena, &p, NULL)));
	assert_false(engine_caches_in_ram(&p));
	/* Without a store it is the tenants that decide. */
	struct weburl u;
	assert_true(cgn_ok(weburl_parse(e.url, &u, NULL)));
	e.cache_ram = CONFIG_CACHE_RAM_AUTO;
	e.kv_offload = OFFLOAD_NONE;
	for (int tenants = 0; tenants < 3; tenants++) {
		struct config cfg = {.agent = {.role = ROLE_BOTH}};
		cfg.auth.enabled = tenants > 0;
		cfg.security.isolation = tenants > 1 ? CONFIG_ISOLATION_NONE : CONFIG_ISOLATION_TENANT;
		const struct engine_launch_ask ask = {.cfg = &cfg,
			.engine = &e,
			.url = &u,
			.prefix = "/run/n.e",
			.host = "h"};
		p = (struct engine_launch){.arena = &arena};
		assert_true(cgn_ok(engine_launch_make(&ask, &p, NULL)));
		assert_int_equal(engine_caches_in_ram(&p), tenants != 1);
	}
	cgn_arena_fini(&arena);
}

static void sim_command_line(void **state)
{
	(void)state;
	struct cgn_arena arena;
	struct engine_launch p;
	char text[512];
	static const char *const more[] = {"--time-scale", "0"};
	struct config_engine e = {.kind = ENGINE_SIM,
		.url = "http://127.0.0.1:8001",
		.managed = true,
		.model = "m",
		.kv_events_ranks = 2,
		.extra_args = {more, 2}};
	cgn_arena_init(&arena, 65536);
	assert_true(cgn_ok(make_plan(&e, &arena, &p, NULL)));
	assert_string_equal(argv_text(&p, text, sizeof text),
		"cgn-sim --listen 127.0.0.1:8001 --model m --time-scale 0");
	assert_int_equal(p.n_env, 1);
	assert_int_equal(p.ranks, 2);
	cgn_arena_fini(&arena);
}

static void what_cannot_be_managed_is_said(void **state)
{
	(void)state;
	struct cgn_arena arena;
	struct engine_launch p;
	struct cgn_err err = {0};
	cgn_arena_init(&arena, 65536);
	struct config_engine e = {.kind = ENGINE_OPENAI_COMPAT, .url = "http://h:1", .managed = true};
	assert_int_equal(make_plan(&e, &arena, &p, &err).code, CGN_INVALID);
	assert_non_null(strstr(err.msg, "openai_compat"));
	e.kind = ENGINE_LLAMA_CPP;
	assert_int_equal(make_plan(&e, &arena, &p, &err).code, CGN_INVALID);
	assert_non_null(strstr(err.msg, "model_path"));
	e.model_path = "m.gguf";
	e.url = "https://h:1";
	assert_int_equal(make_plan(&e, &arena, &p, &err).code, CGN_INVALID);
	e.url = "http://h:1/base";
	assert_int_equal(make_plan(&e, &arena, &p, &err).code, CGN_INVALID);
	e.url = "http://h:1";
	const char *many[ENGINE_MAX_ARGS];
	for (size_t i = 0; i < CGN_COUNT(many); i++)
		many[i] = "x";
	e.extra_args = (struct config_list){many, CGN_COUNT(many)};
	assert_int_equal(make_plan(&e, &arena, &p, &err).code, CGN_INVALID);
	cgn_arena_fini(&arena);
}

static void every_kind_has_its_row(void **state)
{
	(void)state;
	static const int kinds[] = {ENGINE_VLLM, ENGINE_SGLANG, ENGINE_TRTLLM, ENGINE_LLAMA_CPP, ENGINE_MLX,
		ENGINE_OPENAI_COMPAT, ENGINE_SIM};
	for (size_t i = 0; i < CGN_COUNT(kinds); i++) {
		const struct engine_ops *ops = engine_ops_of(kinds[i]);
		assert_non_null(ops);
		assert_int_equal(ops->kind, kinds[i]);
		assert_non_null(ops->read_at);
		assert_true(ops->ready_path[0] == '/' && ops->check_every > 0);
	}
	assert_null(engine_ops_of(STATE_EMBEDDED));
}

static void health_is_judged_per_kind(void **state)
{
	(void)state;
	const struct engine_ops *llama = engine_ops_of(ENGINE_LLAMA_CPP),
				*hosted = engine_ops_of(ENGINE_OPENAI_COMPAT);
	assert_int_equal(llama->readiness(200), ENGINE_READINESS_UP);
	assert_int_equal(llama->readiness(503), ENGINE_READINESS_LOADING);
	assert_int_equal(llama->readiness(404), ENGINE_READINESS_DOWN);
	assert_int_equal(hosted->readiness(200), ENGINE_READINESS_UP);
	assert_int_equal(hosted->readiness(404), ENGINE_READINESS_UP);
	assert_int_equal(hosted->readiness(401), ENGINE_READINESS_DOWN);
	assert_int_equal(hosted->readiness(500), ENGINE_READINESS_DOWN);
	assert_int_equal(hosted->readiness(503), ENGINE_READINESS_LOADING);
}

static void lacking_routes_are_certain(void **state)
{
	(void)state;
	const struct engine_ops *llama = engine_ops_of(ENGINE_LLAMA_CPP),
				*hosted = engine_ops_of(ENGINE_OPENAI_COMPAT);
	assert_true(engine_lacks(llama, CGN_STR("/v1/score")));
	assert_true(engine_lacks(llama, CGN_STR("/v1/score?x=1")));
	assert_false(engine_lacks(llama, CGN_STR("/v1/scores")));
	assert_false(engine_lacks(llama, CGN_STR("/v1/messages")));
	assert_false(engine_lacks(llama, CGN_STR("")));
	assert_false(engine_lacks(hosted, CGN_STR("/v1/score")));
	assert_false(engine_lacks(hosted, CGN_STR("/infill")));
	assert_false(engine_lacks(llama, CGN_STR("/infill")));
	assert_true(engine_lacks(engine_ops_of(ENGINE_VLLM), CGN_STR("/infill?x")));
	assert_true(engine_lacks(engine_ops_of(ENGINE_MLX), CGN_STR("/infill")));
	assert_true(engine_lacks(llama, CGN_STR("/pooling")));
	assert_false(engine_lacks(llama, CGN_STR("/added/by/an/operator")));
}

/* ---- load ---- */
static void llama_cpp_load(void **state)
{
	(void)state;
	const struct engine_ops *ops = engine_ops_of(ENGINE_LLAMA_CPP);
	struct engine_load l = {0};
	ops->sources[0].read(
		CGN_STR("# TYPE llamacpp:requests_processing gauge\nllamacpp:requests_processing 3\nllamacpp:requests_deferred 2\n"),
		&l);
	ops->sources[1].read(
		CGN_STR("[{\"id\":0,\"n_ctx\":1024,\"is_processing\":true,\"n_prompt_tokens\":512},"
			"{\"id\":1,\"n_ctx\":1024,\"is_processing\":false},{\"id\":2,\"n_ctx\":1024,\"n_prompt_tokens\":99999},"
			"{\"id\":3,\"n_ctx\":1024}]"),
		&l);
	assert_int_equal(l.running, 3);
	assert_int_equal(l.waiting, 2);
	assert_int_equal(l.slots, 4);
	assert_true(l.kv_blocks_total == 4096 && l.kv_block_tokens == 1);
	assert_true(l.kv_usage == 0.375);
	/* The engine has become idle. */
	ops->sources[0].read(CGN_STR("llamacpp:requests_processing 0\nllamacpp:requests_deferred 0\n"), &l);
	assert_int_equal(l.running, 0);
	assert_int_equal(l.waiting, 0);
}

static void hostile_load_is_harmless(void **state)
{
	(void)state;
	static const char *const slots[] = {"", "{", "{}", "[1,2]",
		"[{\"n_ctx\":18446744073709551615},{\"n_ctx\":2}]", "[{\"n_ctx\":-1}]", "null"};
	static const char *const metrics[] = {"llamacpp:requests_processing -1\n",
		"llamacpp:requests_processing 1e300\n",
		"llamacpp:requests_processing NaN\nllamacpp:kv_cache_usage_ratio 7\n", "\xff\xfe{}{}{}"};
	const struct engine_ops *ops = engine_ops_of(ENGINE_LLAMA_CPP);
	for (size_t i = 0; i < CGN_COUNT(slots); i++) {
		struct engine_load l = {0};
		ops->sources[1].read(cgn_str_of(slots[i]), &l);
		assert_true(l.kv_blocks_total == 0 && l.kv_usage >= 0 && l.kv_usage <= 1);
	}
	for (size_t i = 0; i < CGN_COUNT(metrics); i++) {
		struct engine_load l = {0};
		ops->sources[0].read(cgn_str_of(metrics[i]), &l);
		assert_true(l.running == 0 && l.kv_usage >= 0 && l.kv_usage <= 1);
	}
}

static void vllm_load(void **state)
{
	(void)state;
	struct engine_load l = {0};
	engine_ops_of(ENGINE_SIM)
		->sources[0]
		.read(CGN_STR("vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 3.0\nvllm:num_requests_running{engine=\"1\"} 4\n"
			      "vllm:num_requests_waiting{engine=\"0\"} 2.0\nvllm:kv_cache_usage_perc{engine=\"0\"} 0.25\n"
			      "vllm:cache_config_info{block_size=\"16\",cache_dtype=\"auto\",engine=\"0\",num_gpu_blocks=\"4096\"} 1.0\n"
			      "vllm:cache_config_info{block_size=\"16\",engine=\"1\",num_gpu_blocks=\"None\"} 1.0\n"),
			&l);
	assert_int_equal(l.running, 7);
	assert_int_equal(l.waiting, 2);
	assert_true(l.kv_usage == 0.25);
	assert_true(l.kv_blocks_total == 4096 && l.kv_block_tokens == 16);
	engine_ops_of(ENGINE_OPENAI_COMPAT)->sources[0].read(CGN_STR("vllm:gpu_cache_usage_perc 0.5\n"), &l);
	assert_true(l.kv_usage == 0.5);
}

static void vllm_without_prefix_caching(void **state)
{
	(void)state;
	struct engine_load l = {0};
	void (*read)(struct cgn_str, struct engine_load *) = engine_ops_of(ENGINE_VLLM)->sources[0].read;
	read(CGN_STR("vllm:cache_config_info{enable_prefix_caching=\"False\",engine=\"0\"} 1.0\n"), &l);
	assert_true(l.keeps_none);
	read(CGN_STR("vllm:num_requests_running 1\n"), &l);
	assert_true(l.keeps_none); /* Not told */
	read(CGN_STR("vllm:cache_config_info{enable_prefix_caching=\"False\",engine=\"0\"} 1.0\n"
		     "vllm:cache_config_info{enable_prefix_caching=\"True\",engine=\"1\"} 1.0\n"),
		&l);
	assert_false(l.keeps_none);
}

static void counters_that_fall_betray_a_restart(void **state)
{
	(void)state;
	struct engine_load before = {0}, now = {0};
	assert_false(engine_load_restarted(&before, &now));
	engine_ops_of(ENGINE_LLAMA_CPP)->sources[0].read(CGN_STR("llamacpp:prompt_tokens_total 500\n"), &now);
	assert_false(engine_load_restarted(&before, &now));
	before = now;
	engine_ops_of(ENGINE_LLAMA_CPP)->sources[0].read(CGN_STR("something_else 1\n"), &now);
	assert_false(engine_load_restarted(&before, &now));
	engine_ops_of(ENGINE_SIM)
		->sources[0]
		.read(CGN_STR("vllm:prompt_tokens_total{engine=\"0\"} 20\n"), &now);
	assert_true(engine_load_restarted(&before, &now));
}

static void counters_that_grow_show_work(void **state)
{
	(void)state;
	const struct {
		int kind;
		const char *before, *after;
		bool worked;
	} rows[] = {
		{ENGINE_VLLM, "vllm:generation_tokens_total 5\n", "vllm:generation_tokens_total 6\n", true},
		{ENGINE_VLLM, "vllm:generation_tokens_total 5\nvllm:num_preemptions_total 1\n",
			"vllm:generation_tokens_total 5\nvllm:num_preemptions_total 2\n", true},
		{ENGINE_VLLM, "vllm:prompt_tokens_total 5\n", "vllm:prompt_tokens_total 9\n", true},
		{ENGINE_VLLM, "vllm:num_requests_waiting 5\n", "vllm:num_requests_waiting 6\n", false},
		{ENGINE_SGLANG, "sglang:generation_tokens_total 5\n", "sglang:generation_tokens_total 6\n",
			true},
		{ENGINE_LLAMA_CPP, "llamacpp:n_decode_total 5\n", "llamacpp:n_decode_total 6\n", true},
		{ENGINE_TRTLLM, "[{\"iter\":7}]", "[{\"iter\":8},{\"iter\":9}]", true},
		{ENGINE_TRTLLM, "[{\"iter\":7}]", "[]", false},
		{ENGINE_SIM, "vllm:generation_tokens_total 5\n", "vllm:generation_tokens_total NaN\n", false},
	};
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		struct engine_load before = {0}, after;
		void (*read)(struct cgn_str, struct engine_load *) =
			engine_ops_of(rows[i].kind)->sources[0].read;
		read(cgn_str_of(rows[i].before), &before);
		after = (struct engine_load){.work = before.work, .made = before.made};
		read(cgn_str_of(rows[i].after), &after);
		assert_int_equal(engine_load_worked(&before, &after), rows[i].worked);
		assert_false(engine_load_worked(&before, &before));
	}
}

static void capacity_in_blocks_of_the_chain(void **state)
{
	(void)state;
	struct engine_load l = {.kv_blocks_total = 4096, .kv_block_tokens = 16};
	assert_int_equal(engine_chain_capacity(&l, 256, 65536), 1024);
	assert_int_equal(engine_chain_capacity(&l, 256, 100), 100);
	l.kv_blocks_total = 1;
	l.kv_block_tokens = 1;
	assert_int_equal(engine_chain_capacity(&l, 256, 65536), 1);
	l.kv_blocks_total = UINT64_MAX;
	assert_int_equal(engine_chain_capacity(&l, 256, 65536), 65536);
	l.kv_blocks_total = 0;
	assert_int_equal(engine_chain_capacity(&l, 256, 65536), 65536);
}

/* ---- models ---- */
static struct engine_models models_of(const char *body, size_t max, struct cgn_arena *a)
{
	struct engine_models m;
	assert_true(cgn_ok(engine_models_read(cgn_str_of(body), a, max, &m, NULL)));
	return m;
}

static void model_lists(void **state)
{
	(void)state;
	struct cgn_arena a;
	struct engine_models m;
	cgn_arena_init(&a, 1 << 20);
	m = models_of(
		"{\"object\":\"list\",\"data\":[{\"id\":\"tiny\",\"aliases\":[\"tiny\",\"t\"]},{\"id\":\"b\\u0041\"},"
		"{\"id\":7},{},{\"id\":\"\"},{\"id\":\"x\\u0000y\"}]}",
		8, &a);
	assert_int_equal(m.n, 3);
	assert_string_equal(m.v[0].name, "tiny");
	assert_string_equal(m.v[1].name, "t");
	assert_string_equal(m.v[2].name, "bA");
	assert_ptr_equal(engine_models_find(&m, CGN_STR("bA")), &m.v[2]);
	assert_null(engine_models_find(&m, CGN_STR("b")));
	assert_int_equal(m.left_out, 0);
	m = models_of("{\"data\":[{\"id\":\"a\"},{\"id\":\"b\"},{\"id\":\"c\"},{\"id\":\"a\"}]}", 2, &a);
	assert_int_equal(m.n, 2);
	assert_int_equal(m.left_out, 1);
	assert_int_equal(models_of("{\"object\":\"list\",\"data\":null}", 8, &a).n,
		0); /* Ollama without a model */
	static const char *const bad[] = {"", "nope", "{}", "[]", "{\"data\":{}}",
		"{\"data\":[{\"id\":\"a\"}"};
	for (size_t i = 0; i < CGN_COUNT(bad); i++) {
		struct cgn_err err = {0};
		assert_int_equal(engine_models_read(cgn_str_of(bad[i]), &a, 8, &m, &err).code,
			CGN_BAD_GATEWAY);
		assert_non_null(strstr(err.msg, "/v1/models"));
	}
	cgn_arena_fini(&a);
	cgn_arena_init(&a, 64);
	assert_int_equal(engine_models_read(CGN_STR("{\"data\":[]}"), &a, 8192, &m, NULL).code,
		CGN_NO_MEMORY);
	cgn_arena_fini(&a);
}

static void lists_of_models_are_bounded(void **state)
{
	(void)state;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	struct cgn_arena a;
	char big[ENGINE_CARD_MAX];
	memset(big, 'r', sizeof big);
	cgn_arena_init(&a, 4 << 20);
	cgn_buf_putz(&b, "{\"data\":[");
	for (unsigned i = 0; i < 5000; i++)
		cgn_buf_fmt(&b, "%s{\"id\":\"model-%u\",\"max_model_len\":%u,\"root\":\"%.*s\"}",
			i > 0 ? "," : "", i, i, i % 100 == 0 ? 900 : 20, big);
	cgn_buf_fmt(&b, ",{\"id\":\"%.*s\"}]}", ENGINE_NAME_MAX + 1, big);
	struct engine_models m = models_of(cgn_buf_z(&b), 4096, &a);
	size_t text = 0;
	assert_int_equal(m.n, 4096);
	assert_int_equal(m.left_out, 5000 - 4096 + 1);
	assert_ptr_equal(engine_models_find(&m, CGN_STR("model-4095")), &m.v[4095]);
	for (size_t i = 0; i < m.n; i++)
		text += strlen(m.v[i].name) + strlen(m.v[i].card);
	assert_true(text <= ENGINE_MODELS_TEXT && text > ENGINE_MODELS_TEXT / 2);
	assert_int_equal(m.v[4095].context, 4095); /* A number needs no room. */
	cgn_arena_fini(&a);
}

/* As vLLM 0.32, llama-server 0.7.0 and a hosted API list a model. */
static void lists_keep_what_engines_tell_of_a_model(void **state)
{
	(void)state;
	struct cgn_arena a;
	cgn_arena_init(&a, 1 << 20);
	struct engine_models m = models_of(
		"{\"data\":[{\"id\":\"v\",\"object\":\"model\",\"created\":1764000000,\"owned_by\":\"vllm\",\"root\":\"/m/v\","
		"\"parent\":null,\"max_model_len\":32768,\"permission\":[{\"id\":\"p-1\"}]},"
		"{\"id\":\"l\",\"aliases\":[\"l\",\"l2\"],\"meta\":{\"n_ctx\":1024,\n\"n_ctx_train\":4096},"
		"\"status\":{\"value\":\"loaded\",\"args\":[\"--port\",\"1\"]}},"
		"{\"id\":\"h\",\"context_length\":8192,\"capabilities\":[\"tools\"],\"status\":{\"value\":\"unloaded\"}},"
		"{\"id\":\"s\",\"status\":{\"value\":\"sleeping\"}},{\"id\":\"g\",\"status\":{\"value\":\"loading\"}},"
		"{\"id\":\"odd\",\"created\":1e15,\"max_model_len\":1e15,\"context_length\":-5,\"context_window\":\"4096\",\"max_context_length\":1.5,\"status\":{\"value\":\"failed\"}}]}",
		16, &a);
	assert_int_equal(m.n, 7);
	assert_string_equal(m.v[0].card, "\"root\":\"/m/v\",\"max_model_len\":32768");
	assert_int_equal(m.v[0].created, 1764000000);
	assert_int_equal(m.v[0].context, 32768);
	assert_int_equal(m.v[0].state, ENGINE_MODEL_UNTOLD);
	assert_string_equal(m.v[1].card, "\"meta\":{\"n_ctx\":1024, \"n_ctx_train\":4096}");
	assert_string_equal(m.v[2].card, m.v[1].card);
	assert_int_equal(m.v[2].context, 1024);
	assert_int_equal(m.v[2].state, ENGINE_MODEL_LOADED);
	assert_string_equal(m.v[3].card, "\"context_length\":8192,\"capabilities\":[\"tools\"]");
	assert_int_equal(m.v[3].state, ENGINE_MODEL_OUT);
	assert_int_equal(m.v[4].state, ENGINE_MODEL_ASLEEP);
	assert_int_equal(m.v[5].state, ENGINE_MODEL_LOADING);
	assert_int_equal(m.v[6].state, ENGINE_MODEL_OUT);
	assert_int_equal(m.v[6].context, 0); /* Not believed. */
	assert_int_equal(m.v[6].created, 0);
	/* vLLM writes the time of the answer as the time of creation. */
	struct engine_models n = models_of("{\"data\":[{\"id\":\"a\",\"created\":1}]}", 4, &a),
			     o = models_of("{\"data\":[{\"id\":\"a\",\"created\":2}]}", 4, &a),
			     p = models_of("{\"data\":[{\"id\":\"a\",\"root\":\"x\"}]}", 4, &a);
	assert_true(engine_models_equal(&n, &o));
	assert_false(engine_models_equal(&n, &p));
	assert_true(engine_models_named_alike(&n, &p));
	cgn_arena_fini(&a);
}

static void engines_tell_which_models_are_loaded(void **state)
{
	(void)state;
	const struct engine_loaded *compat = engine_ops_of(ENGINE_OPENAI_COMPAT)->loaded,
				   *llama = engine_ops_of(ENGINE_LLAMA_CPP)->loaded;
	struct cgn_arena a;
	cgn_arena_init(&a, 1 << 20);
	struct engine_models m = models_of("{\"data\":[{\"id\":\"a:latest\"},{\"id\":\"b\"}]}", 4, &a);
	assert_string_equal(compat[0].path, "/api/ps");
	assert_true(compat[0].read(
		CGN_STR("{\"models\":[{\"name\":\"a:latest\",\"model\":\"a:latest\",\"size_vram\":7}]}"),
		&m));
	assert_int_equal(m.v[0].state, ENGINE_MODEL_LOADED);
	assert_int_equal(m.v[1].state, ENGINE_MODEL_OUT);
	assert_true(compat[0].read(CGN_STR("{\"models\":null}"), &m));
	assert_int_equal(m.v[0].state, ENGINE_MODEL_OUT);
	static const char *const odd[] = {"", "[]", "{}", "{\"models\":{}}", "<html>"};
	for (size_t i = 0; i < CGN_COUNT(odd); i++)
		assert_false(compat[0].read(cgn_str_of(odd[i]), &m));
	assert_string_equal(compat[1].path, "/system");
	assert_true(compat[1].read(
		CGN_STR("{\"backends\":[\"llama-cpp\"],\"loaded_models\":[{\"id\":\"b\"},{\"id\":\"c\"}]}"),
		&m));
	assert_int_equal(m.v[1].state, ENGINE_MODEL_LOADED);
	m = models_of("{\"data\":[{\"id\":\"a\"}]}", 4, &a);
	assert_string_equal(llama[0].path, "/props");
	assert_true(llama[0].read(CGN_STR("{\"total_slots\":2,\"is_sleeping\":false}"), &m));
	assert_int_equal(m.v[0].state, ENGINE_MODEL_UNTOLD);
	assert_true(llama[0].read(CGN_STR("{\"total_slots\":2,\"is_sleeping\":true}"), &m));
	assert_int_equal(m.v[0].state, ENGINE_MODEL_ASLEEP);
	assert_true(llama[0].read(CGN_STR("{\"role\":\"router\",\"max_instances\":3}"), &m));
	assert_int_equal(m.holds, 3);
	cgn_arena_fini(&a);
}

static void engines_name_their_kind_in_the_list_of_models(void **state)
{
	(void)state;
	static const struct {
		const char *body;
		int kind;
	} rows[] = {
		{"{\"data\":[{\"id\":\"m\",\"owned_by\":\"vllm\"}]}", ENGINE_VLLM},
		{"{\"data\":[{\"id\":\"m\",\"owned_by\":\"sglang\"}]}", ENGINE_SGLANG},
		{"{\"data\":[{\"id\":\"m\",\"owned_by\":\"tensorrt_llm\"}]}", ENGINE_TRTLLM},
		{"{\"models\":[],\"data\":[{\"id\":\"m\",\"owned_by\":\"llamacpp\"}]}", ENGINE_LLAMA_CPP},
		{"{\"data\":[7,null,{\"id\":\"a\",\"owned_by\":\"me\"},{\"owned_by\":\"vllm\"}]}",
			ENGINE_VLLM},
		{"{\"data\":[{\"id\":\"m\",\"owned_by\":\"openai\"}]}", ENGINE_OPENAI_COMPAT},
		{"{\"data\":[{\"id\":\"m\",\"owned_by\":7}]}", ENGINE_OPENAI_COMPAT},
		{"{\"data\":[{\"id\":\"m\",\"owned_by\":\"\"}]}", ENGINE_OPENAI_COMPAT},
		{"{\"data\":{}}", ENGINE_OPENAI_COMPAT},
		{"[]", ENGINE_OPENAI_COMPAT},
		{"nope", ENGINE_OPENAI_COMPAT},
		{"", ENGINE_OPENAI_COMPAT},
	};
	for (size_t i = 0; i < CGN_COUNT(rows); i++)
		assert_int_equal(engine_kind_guess(cgn_str_of(rows[i].body))->kind, rows[i].kind);
}

/* ---- tokenizing ---- */

static void engines_that_tell_tokens_are_known_by_their_kind(void **state)
{
	(void)state;
	assert_non_null(engine_tokens_of(CGN_STR("sim")));
	assert_non_null(engine_tokens_of(CGN_STR("llama_cpp")));
	assert_false(engine_tokens_of(CGN_STR("llama_cpp"))->guess);
	assert_true(engine_tokens_of(CGN_STR("openai_compat"))->guess);
	assert_null(engine_tokens_of(CGN_STR("")));
	assert_null(engine_tokens_of(CGN_STR("something new")));
}

static void assert_asks(const struct engine_tokens_step *s, const char *path, const char *body,
	enum prompt_api api, const char *before, const char *want)
{
	struct json_val v;
	struct prompt p;
	struct cgn_buf out = {0};
	const char *lacks = NULL;
	const struct prompt_ask ask = {.api = api, .format = PROMPT_RAW, .max_ids = 8};
	assert_true(cgn_ok(json_parse(cgn_str_of(body), &v, NULL, NULL)));
	assert_true(prompt_read(&ask, v, &p, &lacks));
	assert_string_equal(s->path, path);
	s->ask(CGN_STR("m\"x"), &p, cgn_str_of(before), &out);
	assert_string_equal(cgn_buf_z(&out), want);
	assert_true(cgn_ok(json_parse(cgn_buf_view(&out), &v, NULL, NULL)));
	cgn_buf_fini(&out);
	prompt_fini(&p);
}

static void each_kind_is_asked_in_its_way(void **state)
{
	(void)state;
	const struct engine_tokens_ops *vllm = engine_tokens_of(CGN_STR("sim")),
				       *llama = engine_tokens_of(CGN_STR("llama_cpp"));
	const char *chat =
		"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tools\":[{\"x\":1}],\"chat_template_kwargs\":{\"k\":1},\"add_generation_prompt\":false}";
	const char *text = "{\"prompt\":\"a\\n\"}";
	assert_asks(&vllm->chat[0], "/tokenize", chat, PROMPT_CHAT, "",
		"{\"model\":\"m\\\"x\",\"add_generation_prompt\":false,\"continue_final_message\":false,\"add_special_tokens\":false,"
		"\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tools\":[{\"x\":1}],\"chat_template_kwargs\":{\"k\":1}}");
	assert_asks(&vllm->text[0], "/tokenize", text, PROMPT_COMPLETIONS, "",
		"{\"model\":\"m\\\"x\",\"add_special_tokens\":true,\"prompt\":\"a\\n\"}");
	assert_null(vllm->chat[1].path);
	assert_asks(&llama->chat[0], "/apply-template", chat, PROMPT_CHAT, "",
		"{\"add_generation_prompt\":false,\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tools\":[{\"x\":1}],\"chat_template_kwargs\":{\"k\":1}}");
	assert_asks(&llama->chat[1], "/tokenize", chat, PROMPT_CHAT, "<user>a",
		"{\"add_special\":true,\"parse_special\":true,\"content\":\"<user>a\"}");
	assert_asks(&llama->text[0], "/tokenize", text, PROMPT_COMPLETIONS, "",
		"{\"add_special\":true,\"parse_special\":true,\"content\":\"a\\n\"}");
}

static bool read_tokens(const char *answer, size_t max, struct cgn_buf *out)
{
	return cgn_ok(engine_tokens_of(CGN_STR("sim"))->chat[0].read(cgn_str_of(answer), max, out, NULL));
}

static void answers_are_read_or_refused(void **state)
{
	(void)state;
	struct cgn_buf out = {0};
	const uint32_t want[] = {1, 70000, 4294967295U};
	assert_true(
		read_tokens("{\"count\":3,\"tokens\":[1,70000,4294967295],\"token_strs\":null}", 9, &out));
	assert_int_equal(out.n, sizeof want);
	assert_memory_equal(out.p, want, sizeof want);
	out.n = 0;
	assert_true(read_tokens("{\"tokens\":[1,2,3]}", 2, &out));
	assert_int_equal(out.n, 8);
	static const char *const bad[] = {"", "[]", "{}", "{\"tokens\":7}", "{\"tokens\":[-1]}",
		"{\"tokens\":[4294967296]}", "{\"tokens\":[1.5]}", "{\"count\":3,\"tokens\":[1,2]}",
		"{\"tokens\":[\"1\"]}", "{\"tokens\":[1"};
	for (size_t i = 0; i < CGN_COUNT(bad); i++)
		if (read_tokens(bad[i], 9, &out))
			fail_msg("%s was read", bad[i]);
	cgn_buf_fini(&out);
	const struct engine_tokens_step *llama = &engine_tokens_of(CGN_STR("llama_cpp"))->chat[0];
	assert_true(cgn_ok(llama->read(CGN_STR("{\"prompt\":\"<s>\\u00e4\"}"), 9, &out, NULL)));
	assert_string_equal(cgn_buf_z(&out), "<s>\xc3\xa4");
	assert_false(cgn_ok(llama->read(CGN_STR("{\"prompt\":5}"), 9, &out, NULL)));
	cgn_buf_fini(&out);
}

/* ---- changes ---- */
static void loras_and_sleep_are_asked_for_in_each_kinds_way(void **state)
{
	(void)state;
	static const struct {
		int kind;
		enum engine_change what;
		const char *path, *body;
	} row[] = {
		{ENGINE_VLLM, ENGINE_LORA_LOAD, "/v1/load_lora_adapter",
			"{\"lora_name\":\"sql\",\"lora_path\":\"/loras/\\\"q\"}"},
		{ENGINE_VLLM, ENGINE_LORA_UNLOAD, "/v1/unload_lora_adapter", "{\"lora_name\":\"sql\"}"},
		{ENGINE_VLLM, ENGINE_SLEEP, "/sleep?level=1", "{}"},
		{ENGINE_VLLM, ENGINE_WAKE, "/wake_up", "{}"},
		{ENGINE_SGLANG, ENGINE_SLEEP, "/release_memory_occupation", "{}"},
		{ENGINE_SGLANG, ENGINE_WAKE, "/resume_memory_occupation", "{}"},
		{ENGINE_OPENAI_COMPAT, ENGINE_SLEEP, NULL, ""},
		{ENGINE_SGLANG, ENGINE_LORA_LOAD, "/load_lora_adapter",
			"{\"lora_name\":\"sql\",\"lora_path\":\"/loras/\\\"q\"}"},
		{ENGINE_SGLANG, ENGINE_LORA_UNLOAD, "/unload_lora_adapter", "{\"lora_name\":\"sql\"}"},
		{ENGINE_TRTLLM, ENGINE_LORA_LOAD, NULL, ""},
		{ENGINE_LLAMA_CPP, ENGINE_LORA_LOAD, NULL, ""},
		{ENGINE_OPENAI_COMPAT, ENGINE_LORA_UNLOAD, NULL, ""},
	};
	for (size_t i = 0; i < CGN_COUNT(row); i++) {
		struct cgn_buf body = {0};
		const char *path = engine_change_ask(row[i].kind, row[i].what, CGN_STR("sql"),
			CGN_STR("/loras/\"q"), &body);
		if (row[i].path == NULL)
			assert_null(path);
		else
			assert_string_equal(path, row[i].path);
		assert_true(cgn_str_eq(cgn_buf_view(&body), cgn_str_of(row[i].body)));
		cgn_buf_fini(&body);
	}
}

#define OF_VLLM(message, type, code) \
	"{\"error\":{\"message\":\"" message "\",\"type\":\"" type "\",\"param\":null,\"code\":" code "}}"
#define OF_SGLANG(message, loaded)                                                              \
	"{\"rid\":null,\"http_worker_ipc\":null,\"success\":false,\"error_message\":\"" message \
	"\",\"loaded_adapters\":" loaded "}"

/* The rows are answers of vLLM 0.32.0 and SGLang 0.5.23 on a CPU; vLLM 0.33.0 has the same sentences. */
static void refusals_that_say_it_is_so_already_are_known(void **state)
{
	(void)state;
	static const struct {
		enum engine_change what;
		bool so;
		int status;
		const char *answer;
	} row[] = {
		/* vLLM: loaded twice, a path without an adapter, the base model's name, one that is not there. */
		{ENGINE_LORA_LOAD, true, 400,
			OF_VLLM("The lora adapter 'sql' has already been loaded. If you want to load the adapter in place, set 'load_inplace' to True.",
				"InvalidUserInput", "400")},
		{ENGINE_LORA_LOAD, false, 404,
			OF_VLLM("Loading lora sql failed: No adapter found for /nowhere/lora",
				"NotFoundError", "404")},
		{ENGINE_LORA_LOAD, false, 400,
			OF_VLLM("The lora adapter 'sql' conflicts with a served base model.",
				"InvalidUserInput", "400")},
		{ENGINE_LORA_UNLOAD, true, 404,
			OF_VLLM("The lora adapter 'sql' cannot be found.", "NotFoundError", "404")},
		{ENGINE_LORA_LOAD, false, 404, "{\"detail\":\"Not Found\"}"}, /* no routes for adapters */
		{ENGINE_LORA_UNLOAD, true, 404, "{\"detail\":\"Not Found\"}"},
		/* SGLang: the same, and --enable-lora is missing. */
		{ENGINE_LORA_LOAD, true, 400,
			OF_SGLANG("Failed to load LoRA adapter sql because it is already loaded",
				"{\"sql\":\"/loras/sql\"}")},
		{ENGINE_LORA_LOAD, false, 400,
			OF_SGLANG(
				"Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/nowhere/lora'. Use `repo_type` argument if needed.",
				"{\"other\":\"/loras/sql\"}")},
		{ENGINE_LORA_LOAD, false, 400,
			OF_SGLANG("[Errno 2] No such file or directory: '/loras/sql/adapter_config.json'",
				"{}")},
		{ENGINE_LORA_UNLOAD, true, 400,
			OF_SGLANG("LoRA with name sql does not exist. Loaded LoRAs: odict_keys(['tiny'])",
				"null")},
		{ENGINE_LORA_UNLOAD, false, 400,
			OF_SGLANG("LoRA is not enabled. Please set `--enable-lora` to enable LoRA.", "null")},
		/* Sentences about another adapter say nothing of this one. */
		{ENGINE_LORA_LOAD, false, 400,
			OF_SGLANG("Failed to load LoRA adapter sql2 because it is already loaded",
				"{\"sql\":\"/loras/sql\"}")},
		{ENGINE_LORA_UNLOAD, false, 500,
			OF_VLLM("The lora adapter 'sql' cannot be found.", "InternalServerError", "500")},
	};
	for (size_t i = 0; i < CGN_COUNT(row); i++)
		assert_int_equal(engine_change_is_so(row[i].what, CGN_STR("sql"), row[i].status,
					 cgn_str_of(row[i].answer)),
			row[i].so);
}

static void a_configured_name_is_compared_with_the_list(void **state)
{
	(void)state;
	static const struct {
		const char *body, *served, *listed;
		bool told, lacks;
	} rows[] = {
		{"{\"data\":[{\"id\":\"gemma\"},{\"id\":\"tiny\"}]}", "", NULL, true, false},
		{"{\"data\":[{\"id\":\"tiny\"}]}", "tiny", "tiny", true, false},
		{"{\"data\":[{\"id\":\"a\"},{\"id\":\"b\"}]}", "", "a, b", true, true},
		{"{\"data\":[{\"id\":\"1\"},{\"id\":\"2\"},{\"id\":\"3\"},{\"id\":\"4\"},{\"id\":\"5\"},{\"id\":\"6\"},{\"id\":\"7\"}]}",
			"", "1, 2, 3, 4, 5 and 2 more", true, true},
		/* LoRAs of the one model, llama-server's aliases, Ollama's default tag. */
		{"{\"data\":[{\"id\":\"tiny\",\"parent\":null},{\"id\":\"lora\",\"parent\":\"tiny\"}]}",
			"tiny", "tiny", true, false},
		{"{\"data\":[{\"id\":\"/m/x.gguf\",\"aliases\":[\"other\",\"gemma\"]},{\"id\":\"b\"}]}", "",
			NULL, true, false},
		{"{\"data\":[{\"id\":\"a:latest\"},{\"id\":\"gemma:latest\"}]}", "", NULL, true, false},
		/* Lists that say nothing. */
		{"{\"data\":[]}", "", NULL, false, false},
		{"{\"data\":[{\"id\":7},{\"id\":\"\"},{\"id\":\"a\\u0000b\"},7,null]}", "", NULL, false,
			false},
		{"{\"data\":7}", "", NULL, false, false},
		{"<html>", "", NULL, false, false},
		{"", "", NULL, false, false},
	};
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		struct engine_named got;
		assert_int_equal(engine_named_judge(cgn_str_of(rows[i].body), "gemma", &got), rows[i].told);
		assert_int_equal(got.lacks, rows[i].lacks);
		if (rows[i].told)
			assert_string_equal(got.served, rows[i].served);
		if (rows[i].listed != NULL)
			assert_string_equal(got.listed, rows[i].listed);
	}
}

static void a_long_name_is_no_name_to_ask_by(void **state)
{
	(void)state;
	struct engine_named got;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	cgn_buf_putz(&b, "{\"data\":[{\"id\":\"");
	for (size_t i = 0; i <= ENGINE_SERVED_MAX; i++)
		cgn_buf_char(&b, 'x');
	cgn_buf_putz(&b, "\"}]}");
	assert_false(engine_named_judge(cgn_buf_view(&b), "gemma", &got));
	for (size_t n = 0; n < b.n; n++) /* Cut at every byte. */
		assert_false(engine_named_judge((struct cgn_str){b.p, n}, "gemma", &got));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(refusals_that_say_it_is_so_already_are_known),
		cmocka_unit_test(llama_cpp_command_line),
		cmocka_unit_test(llama_keeps_prompts_in_ram_where_no_tenant_minds),
		cmocka_unit_test(sim_command_line),
		cmocka_unit_test(what_cannot_be_managed_is_said),
		cmocka_unit_test(every_kind_has_its_row),
		cmocka_unit_test(health_is_judged_per_kind),
		cmocka_unit_test(lacking_routes_are_certain),
		cmocka_unit_test(llama_cpp_load),
		cmocka_unit_test(hostile_load_is_harmless),
		cmocka_unit_test(vllm_load),
		cmocka_unit_test(vllm_without_prefix_caching),
		cmocka_unit_test(counters_that_fall_betray_a_restart),
		cmocka_unit_test(counters_that_grow_show_work),
		cmocka_unit_test(capacity_in_blocks_of_the_chain),
		cmocka_unit_test(model_lists),
		cmocka_unit_test(lists_of_models_are_bounded),
		cmocka_unit_test(lists_keep_what_engines_tell_of_a_model),
		cmocka_unit_test(engines_tell_which_models_are_loaded),
		cmocka_unit_test(engines_name_their_kind_in_the_list_of_models),
		cmocka_unit_test(engines_that_tell_tokens_are_known_by_their_kind),
		cmocka_unit_test(each_kind_is_asked_in_its_way),
		cmocka_unit_test(answers_are_read_or_refused),
		cmocka_unit_test(loras_and_sleep_are_asked_for_in_each_kinds_way),
		cmocka_unit_test(a_configured_name_is_compared_with_the_list),
		cmocka_unit_test(a_long_name_is_no_name_to_ask_by),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
