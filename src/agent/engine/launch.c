/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/engine/launch.h"

#include <string.h>
#include <unistd.h>

#include "base/weburl/weburl.h"
#include "io/os/disk/disk.h"
#include "joint/cluster/state/state.h"

/* The slot manager of this engine will exist: its settings are complete, and the store's socket is there. */
static bool slots_will_be_kept(const struct config *cfg, const struct config_engine *ce)
{
	char path[128];
	if (ce->kind != ENGINE_LLAMA_CPP || ce->slot_dir == NULL || cfg->agent.kv_uds[0] == '\0')
		return false;
	(void)snprintf(path, sizeof path, "%s.bulk", cfg->agent.kv_uds);
	return access(path, F_OK) == 0;
}

/* Write the node's host, as other nodes reach it, without brackets. Only a hand-off needs it, so a missing
 * route does not fail here: the node's registration asks for agent.advertise. */
static void node_host(const struct config *cfg, const struct config_engine *ce, char *out, size_t cap)
{
	char address[300];
	struct cgn_str host = ce->handoff_host != NULL ? cgn_str_of(ce->handoff_host) : CGN_STR("127.0.0.1");
	if (ce->handoff_host == NULL &&
		cgn_ok(state_advertised(cfg, cfg->agent.advertise, cfg->agent.listen, 1, "agent.advertise",
			address, sizeof address, NULL))) {
		char *colon = strrchr(address, ':');
		if (colon != NULL && address[0] != '/') {
			*colon = '\0';
			host = cgn_str_of(address);
		}
	}
	if (host.n > 2 && host.p[0] == '[')
		host = (struct cgn_str){host.p + 1, host.n - 2};
	(void)cgn_str_copyz(out, cap, host);
}

CGN_RC engine_prefix(const struct config *cfg, const struct config_engine *ce, struct cgn_arena *a,
	const char **out, struct cgn_err *err)
{
	char node[PROTO_MAX_ID + 1];
	CGN_TRY(state_node_id(cfg, node, sizeof node, err));
	char *text = cgn_arena_fmt(a, "%s/%s.%s", cfg->cluster.state_dir, node, ce->name);
	if (text == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for the engine %s", ce->name);
	for (char *c = text + strlen(cfg->cluster.state_dir) + 1; *c != '\0'; c++)
		if (*c != '.')
			*c = config_file_char(*c); /* A name may hold anything. */
	*out = text;
	return CGN_OK;
}

CGN_RC engine_plan(const struct config *cfg, const struct config_engine *ce, const struct weburl *url,
	struct engine_launch *out, struct cgn_err *err)
{
	char host[256];
	struct engine_launch_ask ask = {.cfg = cfg,
		.engine = ce,
		.url = url,
		.slots_are_kept = slots_will_be_kept(cfg, ce)};
	CGN_TRY(engine_prefix(cfg, ce, out->arena, &ask.prefix, err));
	node_host(cfg, ce, host, sizeof host);
	ask.host = cgn_arena_strz(out->arena, cgn_str_of(host));
	if (ask.host == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for the engine %s", ce->name);
	return engine_launch_make(&ask, out, err);
}

CGN_RC engine_plan_write(const struct engine_launch *plan, const char *dir, struct cgn_err *err)
{
	if (plan->n_files > 0)
		CGN_TRY(disk_mkdirs(dir, 0755, err));
	for (size_t i = 0; i < plan->n_files; i++)
		CGN_TRY(disk_write_file_atomic(plan->files[i].path, cgn_str_of(plan->files[i].text), 0600,
			err));
	return CGN_OK;
}

/* ---- --print-argv ---- */

static CGN_RC print_one(const struct config *cfg, const struct config_engine *ce, struct json_out *o,
	struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_arena_fini) struct cgn_arena arena;
	struct engine_launch plan = {.arena = &arena};
	struct weburl url;
	cgn_arena_init(&arena, ENGINE_PLAN_BYTES);
	CGN_TRY(cgn_err_of(weburl_parse(ce->url, &url, err), "engine.url", err));
	CGN_TRY(engine_plan(cfg, ce, &url, &plan, err));
	engine_launch_put(&plan, o);
	return CGN_OK;
}

CGN_RC engine_print_argv(const struct config *cfg, struct cgn_buf *out, struct cgn_err *err)
{
	struct json_out o = json_out_to(out);
	size_t n = 0;
	for (size_t i = 0; i < cfg->n_engines; i++)
		n += cfg->engines[i].managed;
	if (n == 0)
		return CGN_FAIL(err, INVALID, "no engine is managed: there is no command line to print");
	if (n > 1)
		json_open(&o, '[');
	for (size_t i = 0; i < cfg->n_engines; i++)
		if (cfg->engines[i].managed)
			CGN_TRY(print_one(cfg, &cfg->engines[i], &o, err));
	if (n > 1)
		json_close(&o, ']');
	cgn_buf_char(out, '\n');
	return CGN_OK;
}
