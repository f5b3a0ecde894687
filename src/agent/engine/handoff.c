/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/engine/engine.h"
#include "base/log/log.h"
#include "base/weburl/weburl.h"

#define ASK_TIMEOUT (3 * CGN_SEC)
#define ASK_BYTES   ((size_t)1024 * 1024)
#define IDS_BYTES   ((size_t)64 * 1024)

/* Return how the engine hands over: as configured, or as its kind is started for the role. */
static enum handoff_kind kind_of(const struct config *cfg, const struct config_engine *ce)
{
	bool apart = cfg->agent.role != ROLE_BOTH, nixl = ce->kv_offload == OFFLOAD_NIXL;
	if (ce->handoff != CONFIG_HANDOFF_AUTO)
		return handoff_kind_named(cgn_str_of(config_enum_text(ce->handoff)));
	if (ce->kind == ENGINE_VLLM && (apart || nixl))
		return ce->kv_offload == OFFLOAD_MOONCAKE ? HANDOFF_MOONCAKE : HANDOFF_NIXL;
	if (ce->kind == ENGINE_SGLANG && apart)
		return HANDOFF_SGLANG;
	return ce->kind == ENGINE_TRTLLM && (apart || nixl) ? HANDOFF_TRTLLM : HANDOFF_NONE;
}

static CGN_RC bootstrap_open(struct engine *e, struct cgn_err *err)
{
	struct engine_handoff *h = &e->handoff;
	char url[300];
	const char *host = h->host != NULL ? h->host : e->door.url.host;
	bool v6 = strchr(host, ':') != NULL;
	(void)snprintf(url, sizeof url, v6 ? "http://[%s]:%u" : "http://%s:%u", host, h->port);
	CGN_TRY(weburl_parse(url, &h->bootstrap_url, err));
	const struct http_client_cfg cfg = {.addr = h->bootstrap_url.addr,
		.authority = h->bootstrap_url.authority,
		.proto = HTTP_1,
		.max_conns = 1};
	CGN_TRY(http_client_new(e->host->loop, &cfg, &h->bootstrap, err));
	h->bootstrap_at = (struct webask_endpoint){.client = h->bootstrap, .url = &h->bootstrap_url};
	return CGN_OK;
}

CGN_RC engine_handoff_init(struct engine *e, const struct config *cfg, const struct config_engine *ce,
	struct cgn_err *err)
{
	struct engine_handoff *h = &e->handoff;
	h->ops = handoff_ops_of(kind_of(cfg, ce));
	cgn_arena_init(&h->arena, IDS_BYTES);
	h->port = ce->handoff_port > 0 ? ce->handoff_port : h->ops->port;
	h->host = ce->handoff_host != NULL ? cgn_arena_strz(&e->arena, cgn_str_of(ce->handoff_host)) : NULL;
	h->tp = engine_tp(&(struct engine_launch_ask){.cfg = cfg, .engine = ce});
	h->tag = ce->handoff_tag != NULL ? cgn_arena_strz(&e->arena, cgn_str_of(ce->handoff_tag)) : NULL;
	if ((ce->handoff_host != NULL && h->host == NULL) || (ce->handoff_tag != NULL && h->tag == NULL))
		return CGN_FAIL(err, NO_MEMORY, "no memory for the hand-off of engine %s", e->name);
	/* Only an engine that computes prompts for others has a bootstrap server. */
	h->needs_ids = h->ops->ranks && cfg->agent.role != ROLE_DECODE;
	return h->needs_ids ? bootstrap_open(e, err) : CGN_OK;
}

void engine_handoff_close(struct engine *e)
{
	webask_cancel(&e->handoff.fetch);
	http_client_free(&e->handoff.bootstrap);
	cgn_arena_fini(&e->handoff.arena);
}

void engine_handoff_reset(struct engine *e)
{
	struct engine_handoff *h = &e->handoff;
	webask_cancel(&h->fetch);
	cgn_arena_reset(&h->arena);
	h->n_ids = 0;
	h->build_known = false;
	h->build[0] = '\0';
}

bool engine_handoff_is_known(const struct engine *e)
{
	const struct engine_handoff *h = &e->handoff;
	return h->ops->edits && h->build_known && (!h->needs_ids || h->n_ids > 0);
}

void engine_handoff_terms(const struct engine *e, struct cgn_buf *out)
{
	const struct engine_handoff *h = &e->handoff;
	char block[16], tp[16];
	(void)snprintf(block, sizeof block, "%u", e->view.load.now.kv_block_tokens);
	handoff_term_add(out, "build", cgn_str_of(h->build));
	handoff_term_add(out, "block", cgn_str_of(e->view.load.now.kv_block_tokens > 0 ? block : ""));
	(void)snprintf(tp, sizeof tp, "%u", h->tp);
	handoff_term_add(out, "tp", cgn_str_of(tp));
	handoff_term_add(out, "tag", cgn_str_of(h->tag != NULL ? h->tag : ""));
}

static void handoff_told(struct engine *e)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf terms = {0};
	if (!engine_handoff_is_known(e))
		return;
	engine_handoff_terms(e, &terms);
	cgn_log(INFO, "engine.handoff", F_STR("engine", e->name), F_STR("kind", e->handoff.ops->name),
		F_STRN("terms", cgn_buf_view(&terms)), F_U64("port", e->handoff.port));
	e->host->ops->changed(e->host->user);
}

/* An engine without the path has no build to compare. */
static void on_build(void *user, const struct webask_answer *r)
{
	struct engine *e = user;
	struct engine_handoff *h = &e->handoff;
	struct json_val doc, version;
	CGN_LIVE(e, ENGINE_TAG);
	h->fetch = NULL;
	if (r->err->code != CGN_FINE || r->status >= 500)
		return;
	if (r->status == 200 && cgn_ok(json_parse(r->body, &doc, NULL, NULL)) &&
		json_get(doc, "version", &version) && version.type == JSON_STRING && version.raw.n >= 2)
		(void)cgn_str_copyz(h->build, sizeof h->build,
			(struct cgn_str){version.raw.p + 1, version.raw.n - 2});
	h->build_known = true;
	handoff_told(e);
}

static void on_ranks(void *user, const struct webask_answer *r)
{
	struct engine *e = user;
	struct engine_handoff *h = &e->handoff;
	struct cgn_err err = {0};
	CGN_LIVE(e, ENGINE_TAG);
	h->fetch = NULL;
	cgn_arena_reset(&h->arena);
	if (!webask_is_ok(r))
		(void)CGN_FAIL(&err, BAD_GATEWAY, "%.150s",
			r->err->code != CGN_FINE ? r->err->msg : "not answered with 200");
	else if (cgn_ok(handoff_ranks_read(r->body, &h->arena, h->ids, &h->n_ids, &err)))
		handoff_told(e);
	if (h->n_ids == 0)
		cgn_log_limited(WARN, "engine.handoff_unknown", F_STR("engine", e->name),
			F_STR("bootstrap", h->bootstrap_url.addr), F_STR("why", err.msg),
			F_STR("then", "asked again; until then no prompt is computed here for other nodes"));
}

void engine_handoff_ask(struct engine *e)
{
	struct engine_handoff *h = &e->handoff;
	const struct webask_question build = {.path = h->ops->version_path,
		.max_bytes = ASK_BYTES,
		.timeout = ASK_TIMEOUT};
	const struct webask_question ranks = {.path = HANDOFF_RANKS_PATH,
		.max_bytes = ASK_BYTES,
		.timeout = ASK_TIMEOUT};
	if (!h->ops->edits || h->fetch != NULL)
		return;
	/* A fetch that cannot start is retried at the next reading of the load. */
	if (!h->build_known)
		(void)webask_start(e->host->loop, &e->view.at, &build, on_build, e, &h->fetch, NULL).code;
	else if (h->needs_ids && h->n_ids == 0)
		(void)webask_start(e->host->loop, &h->bootstrap_at, &ranks, on_ranks, e, &h->fetch, NULL)
			.code;
}

Cognitora__V1__EngineHandoff *engine_handoff_new(const struct engine *e, struct pb_tree *t)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf terms = {0};
	const struct engine_handoff *h = &e->handoff;
	if (!h->ops->edits)
		return NULL;
	Cognitora__V1__EngineHandoff *to = PB_NEW(t, engine_handoff);
	engine_handoff_terms(e, &terms);
	to->kind = pb_text(h->ops->name);
	to->known = engine_handoff_is_known(e);
	to->terms = pb_tree_text(t, cgn_buf_view(&terms));
	to->port = h->port;
	to->ranks = h->n_ids;
	return to;
}
