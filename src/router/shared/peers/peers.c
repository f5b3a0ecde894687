/* SPDX-License-Identifier: Apache-2.0 */
#include "router/shared/peers/peers.h"

#include <stdlib.h>

#include "base/json/json.h"
#include "base/weburl/weburl.h"
#include "io/net/tls/tls.h"
#include "io/os/disk/disk.h"
#include "joint/web/webclient/webclient.h"
#include "policy/route/cluster/nodestats.h"
#include "router/shared/peers/summaries.h"

#define PEERS_TAG   0x64bee201U
#define PEERS_LIMIT ((size_t)8 * 1024 * 1024)
#define KEY_BYTES   4096

/* ---- making ---- */

/* Read the first line of the key's file. */
static CGN_RC key_read(struct gw_peer *p, const char *file, struct cgn_arena *a, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	CGN_TRY(disk_read_file(file, KEY_BYTES, &text, err));
	struct cgn_str rest = cgn_buf_view(&text), key = cgn_str_trim(cgn_str_split(&rest, '\n'));
	for (size_t i = 0; i < key.n; i++)
		if (key.p[i] <= ' ' || key.p[i] > '~')
			key.n = 0;
	if (key.n == 0)
		return CGN_FAIL(err, INVALID, "%s: its first line must be a key of visible ASCII characters",
			file);
	p->key = cgn_arena_strz(a, key);
	p->bearer = cgn_arena_fmt(a, "Bearer %.*s", CGN_STR_ARG(key));
	return p->key != NULL && p->bearer != NULL ? CGN_OK : CGN_RC_OF(CGN_NO_MEMORY);
}

static bool models_fill(struct gw_peer *p, const struct config_list *from, struct cgn_arena *a)
{
	p->models = cgn_arena_zero(a, (from->n + 1) * sizeof *p->models);
	for (size_t i = 0; p->models != NULL && i < from->n; i++) {
		struct gw_peer_model *m = &p->models[p->n_models++];
		struct cgn_str ours, theirs;
		CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf json = {0};
		CGN_MUST(config_peer_model_read(cgn_str_of(from->v[i]), &ours, &theirs));
		m->ours = cgn_arena_str(a, ours);
		m->theirs = cgn_arena_str(a, theirs);
		struct json_out j = json_out_to(&json);
		json_put_str(&j, theirs);
		m->json = cgn_arena_str(a, cgn_buf_view(&json));
		if (json.bad || m->ours.p == NULL || m->theirs.p == NULL || m->json.p == NULL)
			return false;
	}
	return p->models != NULL;
}

static bool patterns_fill(const struct config_list *from, struct cgn_arena *a, struct cgn_str **out,
	size_t *n)
{
	struct cgn_str *v = *out = cgn_arena_zero(a, (from->n + 1) * sizeof *v);
	for (size_t i = 0; v != NULL && i < from->n; i++) {
		v[i] = cgn_arena_str(a, cgn_str_of(from->v[i]));
		if (v[(*n)++].p == NULL)
			return false;
	}
	return v != NULL;
}

static bool arrivals_fill(struct gw_peer *p, const struct config_list *from, struct cgn_arena *a)
{
	p->arrivals = cgn_arena_zero(a, (from->n + 1) * sizeof *p->arrivals);
	for (size_t i = 0; p->arrivals != NULL && i < from->n; i++) {
		struct gw_peer_tenant *t = &p->arrivals[p->n_arrivals++];
		struct cgn_str row = cgn_str_of(from->v[i]), theirs, ours;
		CGN_MUST(config_peer_model_read(row, &theirs, &ours));
		bool is_map = memchr(row.p, '=', row.n) != NULL;
		t->theirs = cgn_arena_str(a, theirs);
		t->ours = is_map ? cgn_arena_str(a, ours) : (struct cgn_str){0};
		t->label = is_map ? t->ours
				  : cgn_str_of(cgn_arena_fmt(a, "%s/%.*s", p->name, CGN_STR_ARG(theirs)));
		if (t->theirs.p == NULL || t->label.p == NULL)
			return false;
	}
	return p->arrivals != NULL;
}

static bool pattern_matches(const struct cgn_str *v, size_t n, struct cgn_str s)
{
	for (size_t i = 0; i < n; i++)
		if (cgn_str_eq(v[i], s) || cgn_str_glob(v[i], s))
			return true;
	return false;
}

static void budget_fill(struct gw_peer *p, double daily, const char *currency)
{
	if (daily <= 0)
		return;
	p->budgets.n = 1;
	p->budgets.v[0] = (struct budget){.unit = BUDGET_MONEY,
		.window = BUDGET_DAY,
		.limit = (uint64_t)(daily * (double)BUDGET_MONEY_SCALE + 0.5)};
	if (p->budgets.v[0].limit > BUDGET_AMOUNT_MAX)
		p->budgets.v[0].limit = BUDGET_AMOUNT_MAX;
	(void)cgn_str_copyz(p->budgets.v[0].currency, BUDGET_CURRENCY, cgn_str_of(currency));
}

/* The port of one peer believes the CA of that peer, and refuses clients without a certificate of it. */
static CGN_RC gate_open(struct gw_peer *p, const struct config_peer *from, struct cgn_err *err)
{
	static const char *const alpn[] = {"http/1.1", NULL};
	const struct tls_cfg cfg = {.server = true,
		.ca_file = from->ca_file,
		.cert_file = from->cert_file,
		.key_file = from->key_file,
		.require_peer_cert = true,
		.alpn = alpn};
	return tls_ctx_new(&cfg, &p->gate, err);
}

/* The URL is checked by webclient_check: a peer in clear has no CA. */
static CGN_RC transport_open(struct gw_peer *p, const struct config_peer *from, struct cgn_arena *a,
	struct cgn_err *err)
{
	struct weburl url;
	/* As state_tls_to_router: an agent there may have a router's host name. */
	const bool cluster = gw_peer_is_cluster(p);
	const struct webclient_cfg web = {.url = from->url,
		.peer_uri = cluster ? "/router/" : NULL,
		.peer_uri_of = cluster ? "cognitora://" : NULL,
		.ca_file = from->ca_file,
		.cert_file = from->cert_file,
		.key_file = from->key_file};
	if (from->listen != NULL)
		CGN_TRY(gate_open(p, from, err));
	if (from->url == NULL)
		return CGN_OK;
	CGN_TRY(webclient_check(&web, err));
	CGN_TRY(weburl_parse(from->url, &url, err));
	if (url.tls)
		CGN_TRY(webclient_tls(&web, &p->tls, err));
	if (from->api_key_file != NULL)
		CGN_TRY(key_read(p, from->api_key_file, a, err));
	return CGN_OK;
}

/* A price for a million tokens, as trillionths a token. */
static uint64_t price_of(double million)
{
	return (uint64_t)(million * 1e6 + 0.5);
}

static CGN_RC peer_fill(struct gw_peers *all, const struct config *cfg, size_t i, struct cgn_err *err)
{
	const struct config_peer *from = &cfg->peers[i];
	struct gw_peer *p = &all->v[i];
	struct cgn_arena *a = &all->arena;
	struct cgn_err why;
	*p = (struct gw_peer){
		.name = cgn_arena_strz(a, cgn_str_of(from->name)),
		.node = cgn_arena_fmt(a, "peer:%s", from->name),
		.url = from->url != NULL ? cgn_arena_strz(a, cgn_str_of(from->url)) : NULL,
		.listen = from->listen != NULL ? cgn_arena_strz(a, cgn_str_of(from->listen)) : NULL,
		.account = cgn_str_of(cgn_arena_fmt(a, "p:%s", from->name)),
		.slot = (uint16_t)(ROUTE_MAX_NODES + i),
		.kind = from->kind,
		.min_priority = from->min_priority,
		.resume = engine_resume_named(cgn_str_of(config_enum_text(from->resume))),
		.input = price_of(from->input),
		.output = price_of(from->output),
		.max_concurrent = from->max_concurrent,
		.expected_ttft = from->expected_ttft,
		.first_byte_timeout = from->first_byte_timeout,
	};
	budget_fill(p, from->daily_budget, cfg->router.currency);
	if (p->name == NULL || p->node == NULL || (p->url == NULL) != (from->url == NULL) ||
		(p->listen == NULL) != (from->listen == NULL) || p->account.p == NULL ||
		!models_fill(p, &from->models, a) ||
		!patterns_fill(&from->tenants, a, &p->tenants, &p->n_tenants) ||
		!patterns_fill(&from->accepts, a, &p->accepts, &p->n_accepts) ||
		!arrivals_fill(p, &from->accepts_tenants, a))
		return CGN_FAIL(err, NO_MEMORY, "peers: out of memory");
	cgn_rc rc = transport_open(p, from, a, &why);
	if (gw_peer_is_cluster(p) && cfg->router.federation.summary_interval > 0)
		p->summaries = gw_summaries_new();
	all->n++;
	if (!cgn_ok(rc))
		return CGN_FAIL_AS(err, rc.code, "peers.\"%.40s\": %.400s", from->name, why.msg);
	return CGN_OK;
}

CGN_RC gw_peers_open(const struct config *cfg, struct gw_peers **out, struct cgn_err *err)
{
	CGN_MUST(cfg->n_peers <= CLUSTER_PEERS);
	if (!cfg->router.federation.enabled)
		return CGN_OK;
	struct gw_peers *all = CGN_NEW(struct gw_peers);
	all->tag = PEERS_TAG;
	cgn_arena_init(&all->arena, PEERS_LIMIT);
	all->v = cgn_arena_zero(&all->arena, (cfg->n_peers + 1) * sizeof *all->v);
	all->cluster = cgn_arena_strz(&all->arena, cgn_str_of(cfg->cluster.name));
	cgn_rc rc = all->v != NULL && all->cluster != NULL ? CGN_OK
							   : CGN_FAIL(err, NO_MEMORY, "peers: out of memory");
	for (size_t i = 0; cgn_ok(rc) && i < cfg->n_peers; i++)
		rc = peer_fill(all, cfg, i, err);
	if (!cgn_ok(rc)) {
		gw_peers_close(&all);
		return rc;
	}
	*out = all;
	return CGN_OK;
}

void gw_peers_close(struct gw_peers **take)
{
	struct gw_peers *all = CGN_TAKE_LIVE(take, PEERS_TAG);
	if (all == NULL)
		return;
	for (size_t i = 0; i < all->n; i++) {
		tls_ctx_free(&all->v[i].tls);
		tls_ctx_free(&all->v[i].gate);
		gw_summaries_free(&all->v[i].summaries);
	}
	cgn_arena_fini(&all->arena);
	all->tag = 0;
	free(all);
}

/* ---- permission ---- */

struct gw_peer_model *gw_peer_model(const struct gw_peer *p, struct cgn_str model)
{
	for (size_t i = 0; i < p->n_models; i++)
		if (cgn_str_eq(p->models[i].ours, model))
			return &p->models[i];
	return NULL;
}

bool gw_peer_takes_tenant(const struct gw_peer *p, struct cgn_str tenant)
{
	return pattern_matches(p->tenants, p->n_tenants, tenant);
}

bool gw_peer_is_cluster(const struct gw_peer *p)
{
	return p->kind == CONFIG_PEER_COGNITORA;
}

const struct gw_peer_tenant *gw_peer_arrival(const struct gw_peer *p, struct cgn_str theirs)
{
	for (size_t i = 0; i < p->n_arrivals; i++) {
		const struct gw_peer_tenant *t = &p->arrivals[i];
		if (cgn_str_eq(t->theirs, theirs) || (t->ours.n == 0 && cgn_str_glob(t->theirs, theirs)))
			return t;
	}
	return NULL;
}

bool gw_peers_own_tenant(const struct gw_peers *peers, struct cgn_str tenant)
{
	for (size_t i = 0; peers != NULL && i < peers->n; i++) {
		size_t n = strlen(peers->v[i].name);
		if (peers->v[i].listen != NULL && tenant.n > n && tenant.p[n] == '/' &&
			memcmp(tenant.p, peers->v[i].name, n) == 0)
			return true;
	}
	return false;
}

bool gw_peer_may_ask(const struct gw_peer *p, struct cgn_str model)
{
	return pattern_matches(p->accepts, p->n_accepts, model);
}

bool gw_peer_has_route(const struct gw_peer *p, struct cgn_str path)
{
	static const char *const openai[] = {"/v1/chat/completions", "/v1/completions", "/v1/embeddings",
		"/v1/responses", NULL};
	static const char *const anthropic[] = {"/v1/messages", "/v1/chat/completions", NULL};
	static const char *const cluster[] = {"/v1/chat/completions", "/v1/completions", "/v1/embeddings",
		"/v1/responses", "/v1/messages", "/v1/rerank", "/v1/score", NULL};
	const char *const *routes = p->kind == CONFIG_PEER_ANTHROPIC ? anthropic
		: gw_peer_is_cluster(p)                              ? cluster
								     : openai;
	for (path = cgn_str_split(&path, '?'); *routes != NULL; routes++)
		if (cgn_str_is(path, *routes))
			return true;
	return false;
}

bool gw_peers_know(const struct gw_peers *peers, struct cgn_str model)
{
	for (size_t i = 0; peers != NULL && i < peers->n; i++)
		if (peers->v[i].url != NULL && gw_peer_model(&peers->v[i], model) != NULL)
			return true;
	return false;
}

bool gw_peers_answer(const struct gw_peers *peers)
{
	for (size_t i = 0; peers != NULL && i < peers->n; i++)
		if (peers->v[i].url != NULL && peers->v[i].n_models > 0)
			return true;
	return false;
}

uint32_t gw_peers_open_requests(const struct gw_peers *peers, struct cgn_str model)
{
	uint32_t n = 0;
	for (size_t i = 0; peers != NULL && i < peers->n; i++) {
		struct gw_peer_model *m = gw_peer_model(&peers->v[i], model);
		n += m != NULL ? atomic_load_explicit(&m->open, memory_order_relaxed) : 0;
	}
	return n;
}

uint64_t gw_peer_price(const struct gw_peer *p, uint64_t input, uint64_t output)
{
	return budget_of_prices((budget_prices)input * p->input + (budget_prices)output * p->output);
}
