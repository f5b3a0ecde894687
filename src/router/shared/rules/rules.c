/* SPDX-License-Identifier: Apache-2.0 */
#include "router/shared/rules/rules.h"

#include <stdlib.h>

#include "policy/route/chooser/chooser.h"
#include "router/shared/rules/tokenizer_set.h"

#define RULES_TAG   0x64d10e01U
#define RULES_LIMIT ((size_t)64 * 1024 * 1024)

static bool aliases_fill(struct gw_rules *r, struct gw_model *m, const struct config_list *from)
{
	struct cgn_str *v = cgn_arena_zero(&r->arena, (from->n + 1) * sizeof *v);
	if (v == NULL)
		return false;
	for (size_t i = 0; i < from->n; i++) {
		v[i] = cgn_arena_str(&r->arena, cgn_str_of(from->v[i]));
		if (v[i].p == NULL)
			return false;
	}
	m->aliases = v;
	m->n_aliases = from->n;
	return true;
}

static int name_order(const void *a, const void *b)
{
	const struct gw_model_name *x = a, *y = b;
	return cgn_str_order(x->name, y->name);
}

/* Sort the names of all models for gw_rules_model: a router may have thousands. */
static bool names_fill(struct gw_rules *r)
{
	size_t n = 0;
	for (size_t i = 0; i < r->n_models; i++)
		n += 1 + r->models[i].n_aliases;
	r->names = cgn_arena_get(&r->arena, (n + 1) * sizeof *r->names);
	if (r->names == NULL)
		return false;
	for (size_t i = 0; i < r->n_models; i++) {
		const struct gw_model *m = &r->models[i];
		r->names[r->n_names++] = (struct gw_model_name){m->name, m};
		for (size_t a = 0; a < m->n_aliases; a++)
			r->names[r->n_names++] = (struct gw_model_name){m->aliases[a], m};
	}
	qsort(r->names, n, sizeof *r->names, name_order);
	return true;
}

static bool default_fill(struct gw_rules *r, const struct config *cfg)
{
	r->default_model = cgn_arena_str(&r->arena, cgn_str_of(cfg->router.default_model));
	return r->default_model.p != NULL;
}

static bool cookie_fill(struct gw_rules *r, const struct config *cfg)
{
	const char *name = cfg->router.session_cookie;
	r->session_cookie =
		name != NULL ? cgn_arena_str(&r->arena, cgn_str_of(name)) : (struct cgn_str){NULL, 0};
	return name == NULL || r->session_cookie.p != NULL;
}

static bool models_fill(struct gw_rules *r, const struct config *cfg)
{
	r->models = cgn_arena_zero(&r->arena, (cfg->n_models + 1) * sizeof *r->models);
	if (r->models == NULL)
		return false;
	for (size_t i = 0; i < cfg->n_models; i++) {
		struct gw_model *m = &r->models[r->n_models++];
		m->name = cgn_arena_str(&r->arena, cgn_str_of(cfg->models[i].name));
		m->block_bytes = cfg->models[i].block_bytes;
		m->block_tokens = cfg->models[i].block_tokens;
		m->tokens = cfg->models[i].tokens;
		if (m->name.p == NULL || !aliases_fill(r, m, &cfg->models[i].aliases))
			return false;
	}
	return names_fill(r);
}

static struct gw_tenant tenant_row(const struct config_tenant *row)
{
	return (struct gw_tenant){
		.weight = row->weight,
		.max_priority = row->max_priority,
		.rates = {rate_per_second(row->rps, row->burst), rate_per_minute(row->tokens_per_minute)},
	};
}

/* The configuration has checked the texts. */
static struct budget_set budgets_of(const struct config_list *texts)
{
	struct budget_set s = {0};
	for (size_t i = 0; i < texts->n; i++)
		CGN_MUST(cgn_ok(budget_set_add(&s, cgn_str_of(texts->v[i]), NULL)));
	return s;
}

static int tenant_order(const void *a, const void *b)
{
	const struct gw_tenant *x = a, *y = b;
	return cgn_str_order(x->name, y->name);
}

static bool tenants_fill(struct gw_rules *r, const struct config *cfg)
{
	r->tenants = cgn_arena_zero(&r->arena, (cfg->n_tenants + 1) * sizeof *r->tenants);
	if (r->tenants == NULL)
		return false;
	for (size_t i = 0; i < cfg->n_tenants; i++) {
		r->tenants[i] = tenant_row(&cfg->tenants[i]);
		r->tenants[i].budgets = budgets_of(&cfg->tenants[i].budgets);
		r->tenants[i].name = cgn_arena_str(&r->arena, cgn_str_of(cfg->tenants[i].name));
		r->tenants[i].share = cgn_arena_str(&r->arena, cgn_str_of(cfg->tenants[i].share));
		if (r->tenants[i].name.p == NULL || r->tenants[i].share.p == NULL)
			return false;
	}
	r->n_tenants = cfg->n_tenants;
	/* The row behind the last is that of tenants without a row of their own; it is not sorted. */
	r->tenants[r->n_tenants] = tenant_row(&cfg->any_tenant);
	qsort(r->tenants, r->n_tenants, sizeof *r->tenants, tenant_order);
	return true;
}

/* A price for a million tokens, as trillionths a token. */
static uint64_t price_of(double million)
{
	return (uint64_t)(million * 1e6 + 0.5);
}

static bool is_pattern(struct cgn_str s)
{
	for (size_t i = 0; i < s.n; i++)
		if (strchr("*?[", s.p[i]) != NULL)
			return true;
	return false;
}

static int price_order(const void *a, const void *b)
{
	const struct gw_price *x = a, *y = b;
	bool wild_x = is_pattern(x->pattern), wild_y = is_pattern(y->pattern);
	/* Names come before patterns. The descending order puts "llama-3*" before "llama-*", as '*' sorts
	 * before letters and digits: the more specific pattern is found first. */
	return wild_x != wild_y ? wild_x - wild_y : cgn_str_order(y->pattern, x->pattern);
}

static bool prices_fill(struct gw_rules *r, const struct config *cfg)
{
	(void)cgn_str_copyz(r->price.currency, sizeof r->price.currency, cgn_str_of(cfg->router.currency));
	r->price.rows = cgn_arena_zero(&r->arena, (cfg->n_prices + 1) * sizeof *r->price.rows);
	for (size_t i = 0; r->price.rows != NULL && i < cfg->n_prices; i++) {
		const struct config_price *from = &cfg->prices[i];
		double cached = from->cached_input < 0 ? from->input : from->cached_input;
		r->price.rows[i] = (struct gw_price){cgn_arena_str(&r->arena, cgn_str_of(from->name)),
			price_of(from->input), price_of(cached), price_of(from->output)};
		if (r->price.rows[i].pattern.p == NULL)
			return false;
		r->price.n++;
	}
	if (r->price.rows != NULL)
		qsort(r->price.rows, r->price.n, sizeof *r->price.rows, price_order);
	return r->price.rows != NULL;
}

/* False: out of memory. */
static bool passing_fill(struct gw_rules *r, const struct config *cfg)
{
	const struct config_list *routes = &cfg->router.extra_routes, *headers = &cfg->router.pass_headers;
	r->pass.routes = cgn_arena_get(&r->arena, (routes->n + 1) * sizeof *r->pass.routes);
	r->pass.headers = cgn_arena_get(&r->arena, (headers->n + 1) * sizeof *r->pass.headers);
	if (r->pass.routes == NULL || r->pass.headers == NULL)
		return false;
	for (; r->pass.n_routes < routes->n; r->pass.n_routes++) {
		const char *text = cgn_arena_fmt(&r->arena, "%s", routes->v[r->pass.n_routes]);
		if (text == NULL)
			return false;
		CGN_MUST(cgn_ok(passing_route_read(text, &r->pass.routes[r->pass.n_routes], NULL)));
	}
	for (; r->pass.n_headers < headers->n; r->pass.n_headers++) {
		struct cgn_str name = cgn_str_of(headers->v[r->pass.n_headers]);
		r->pass.headers[r->pass.n_headers] = cgn_arena_str(&r->arena, name);
		if (r->pass.headers[r->pass.n_headers].p == NULL)
			return false;
	}
	return true;
}

static void request_fill(struct gw_rules *r, const struct config *cfg)
{
	r->rates =
		(struct gw_rates){rate_per_second(cfg->router.rate_limit.rps, cfg->router.rate_limit.burst),
			rate_per_minute(cfg->router.rate_limit.tokens_per_minute)};
	r->session_secure = cfg->router.tls_cert_file != NULL;
	r->max_body = cfg->router.max_body;
	r->max_inflight_body = cfg->router.max_inflight_body;
	r->resume = cfg->router.resume;
	r->resume_size = cfg->router.resume_size;
	r->timeout.first_byte = cfg->router.first_byte_timeout;
	r->timeout.stream_idle = cfg->router.stream_idle_timeout;
	r->timeout.stall = cfg->router.stall_timeout;
	r->sse_keepalive = cfg->router.sse_keepalive;
	r->timeout.tokenize = cfg->router.tokenize_timeout;
	r->access.to = strcmp(cfg->router.access_log, "stderr") == 0 ? GW_ACCESS_STDERR
		: strcmp(cfg->router.access_log, "off") == 0         ? GW_ACCESS_OFF
								     : GW_ACCESS_FILE;
	r->access.sample = cfg->router.access_log_sample;
	arms_rules_fill(cfg, &r->shadow.arms);
	r->shadow.sample = cfg->router.shadow_sample;
}

static void retry_fill(struct gw_rules *r, const struct config *cfg)
{
	r->retry.attempts = cfg->router.retry.attempts;
	r->retry.backoff = cfg->router.retry.backoff;
	r->retry.budget = cfg->router.retry.budget;
	for (size_t i = 0; i < cfg->router.retry.on.n; i++)
		r->retry.on |= breaker_failure_bit(cfg->router.retry.on.v[i]);
}

static void breaker_fill(struct gw_rules *r, const struct config *cfg)
{
	r->breaker = (struct breaker_rules){cfg->router.breaker.failures, cfg->router.breaker.open_for};
	r->outlier = (struct gw_outlier_rules){cfg->router.breaker.outliers,
		cfg->router.breaker.failure_share, cfg->router.breaker.max_ejected};
}

static void admission_fill(struct gw_rules *r, const struct config *cfg)
{
	const char *policy = config_enum_text(cfg->router.admission.queue_policy);
	CGN_MUST(queue_policy_find(cgn_str_of(policy), &r->queue.policy));
	r->queue.most = cfg->router.admission.max_queue;
	r->queue.timeout = cfg->router.admission.queue_timeout;
	r->queue.ttft_slo = cfg->router.admission.ttft_slo;
	r->queue.node_wait = cfg->router.admission.node_wait;
	r->away = (struct peer_rules){cfg->router.federation.margin, cfg->router.federation.rework,
		cfg->router.federation.affinity, cfg->router.federation.price_weight,
		cfg->router.federation.energy_weight};
	r->away_hops = cfg->router.federation.max_hops;
	r->quote = (struct gw_quote_rules){cfg->router.quote.enabled,
		cfg->router.admission.deadline_confidence, cfg->router.quote.coverage};
}

static void isolation_fill(struct gw_rules *r, const struct config *cfg, const struct digest *secret)
{
	r->isolation = (struct gw_isolation){
		.on = cfg->auth.enabled && cfg->security.isolation == CONFIG_ISOLATION_TENANT,
		.strict = cfg->security.isolation_strict,
		.secret = *secret,
	};
}

static const char *const *texts_copy(struct gw_rules *r, const struct config_list *from)
{
	const char **v = cgn_arena_zero(&r->arena, (from->n + 1) * sizeof *v);
	for (size_t i = 0; v != NULL && i < from->n; i++) {
		v[i] = cgn_arena_strz(&r->arena, cgn_str_of(from->v[i]));
		if (v[i] == NULL)
			return NULL;
	}
	return v;
}

static bool site_fill(struct gw_rules *r, const struct config *cfg)
{
	r->site = (struct site_rules){.listen = cgn_arena_strz(&r->arena, cgn_str_of(cfg->router.listen)),
		.hosts = texts_copy(r, &cfg->security.allowed_hosts),
		.n_hosts = cfg->security.allowed_hosts.n,
		.origins = texts_copy(r, &cfg->security.allowed_origins),
		.n_origins = cfg->security.allowed_origins.n,
		.near_pages = true};
	return r->site.listen != NULL && r->site.hosts != NULL && r->site.origins != NULL;
}

CGN_RC gw_rules_new(const struct config *cfg, struct auth_keys *keys, const struct digest *secret,
	struct gw_rules **out, struct cgn_err *err)
{
	struct gw_rules *r = CGN_NEW(struct gw_rules);
	r->tag = RULES_TAG;
	atomic_init(&r->refs, 1);
	cgn_arena_init(&r->arena, RULES_LIMIT);
	if (keys != NULL)
		auth_keys_ref(keys);
	r->auth.keys = keys;
	r->auth.asks = cfg->auth.enabled || keys != NULL;
	chooser_rules_fill(cfg, &r->route);
	request_fill(r, cfg);
	retry_fill(r, cfg);
	breaker_fill(r, cfg);
	admission_fill(r, cfg);
	isolation_fill(r, cfg, secret);
	cgn_rc rc = identity_roles_new(cfg, &r->auth.roles, err);
	if (cgn_ok(rc))
		rc = gw_hook_rules_fill(cfg, &r->arena, &r->hooks, err);
	if (!cgn_ok(rc)) {
		gw_rules_unref(&r);
		return rc;
	}
	if (!default_fill(r, cfg) || !cookie_fill(r, cfg) || !models_fill(r, cfg) || !tenants_fill(r, cfg) ||
		!prices_fill(r, cfg) || !passing_fill(r, cfg) || !site_fill(r, cfg) ||
		!gw_cascade_rules_fill(cfg, &r->arena, &r->cascade)) {
		gw_rules_unref(&r);
		return CGN_FAIL(err, NO_MEMORY, "rules: out of memory");
	}
	*out = r;
	return CGN_OK;
}

static struct gw_tokenizer_set *tokenizers_of(const struct gw_rules *rules, struct cgn_str model)
{
	for (size_t i = 0; rules != NULL && i < rules->n_models; i++)
		if (cgn_str_eq(rules->models[i].name, model))
			return rules->models[i].tokenizers;
	return NULL;
}

bool gw_reads_tokenizer(const struct config_model *m)
{
	return m->tokenizer != NULL && m->tokens != TOKENS_BYTES && m->tokens != TOKENS_ENGINE;
}

CGN_RC gw_rules_load_tokenizers(struct gw_rules *r, const struct config *cfg, const struct gw_rules *old,
	bool keep, void (*refused)(void *user, const char *model, bool has_old, const struct cgn_err *why),
	void *user, struct cgn_err *err)
{
	CGN_LIVE(r, RULES_TAG);
	CGN_MUST(r->n_models == cfg->n_models);
	for (size_t i = 0; i < cfg->n_models; i++) {
		struct gw_tokenizer_set *before = tokenizers_of(old, r->models[i].name);
		if (!gw_reads_tokenizer(&cfg->models[i]))
			continue;
		bool same = before != NULL &&
			before->fingerprint == gw_tokenizer_set_fingerprint(&cfg->models[i]);
		cgn_rc rc =
			same ? CGN_OK : gw_tokenizer_set_load(&cfg->models[i], &r->models[i].tokenizers, err);
		if (!cgn_ok(rc) && !keep)
			return rc;
		if (!cgn_ok(rc))
			refused(user, cfg->models[i].name, before != NULL, err);
		if (r->models[i].tokenizers == NULL && before != NULL) {
			gw_tokenizer_set_ref(before);
			r->models[i].tokenizers = before;
		}
	}
	return CGN_OK;
}

void gw_rules_take_tokens(struct gw_rules *r, struct oidc *oidc)
{
	CGN_LIVE(r, RULES_TAG);
	r->auth.oidc = oidc;
}

void gw_rules_take_machine(struct gw_rules *r, const char *name)
{
	CGN_LIVE(r, RULES_TAG);
	r->site.machine = name;
}

void gw_rules_ref(struct gw_rules *r)
{
	CGN_LIVE(r, RULES_TAG);
	atomic_fetch_add_explicit(&r->refs, 1, memory_order_relaxed);
}

void gw_rules_unref(struct gw_rules **take)
{
	struct gw_rules *r = CGN_TAKE_LIVE(take, RULES_TAG);
	if (r == NULL)
		return;
	if (atomic_fetch_sub_explicit(&r->refs, 1, memory_order_acq_rel) != 1)
		return;
	r->tag = 0;
	for (size_t i = 0; i < r->n_models; i++)
		gw_tokenizer_set_unref(&r->models[i].tokenizers);
	auth_keys_unref(&r->auth.keys);
	identity_roles_unref(&r->auth.roles);
	gw_hook_rules_fini(&r->hooks);
	cgn_arena_fini(&r->arena);
	free(r);
}

const struct gw_model *gw_rules_model(const struct gw_rules *r, struct cgn_str name)
{
	CGN_LIVE(r, RULES_TAG);
	const struct gw_model_name key = {.name = name};
	const struct gw_model_name *found = bsearch(&key, r->names, r->n_names, sizeof key, name_order);
	return found != NULL ? found->model : NULL;
}

struct cgn_str gw_rules_name_of(const void *rules, struct cgn_str name)
{
	const struct gw_model *row = gw_rules_model(rules, name);
	return row != NULL ? row->name : name;
}

const struct gw_price *gw_rules_price(const struct gw_rules *r, struct cgn_str model)
{
	CGN_LIVE(r, RULES_TAG);
	for (size_t i = 0; i < r->price.n; i++)
		if (cgn_str_eq(r->price.rows[i].pattern, model) ||
			cgn_str_glob(r->price.rows[i].pattern, model))
			return &r->price.rows[i];
	return NULL;
}

const struct gw_tenant *gw_rules_tenant(const struct gw_rules *r, struct cgn_str name)
{
	CGN_LIVE(r, RULES_TAG);
	const struct gw_tenant key = {.name = name};
	const struct gw_tenant *row = bsearch(&key, r->tenants, r->n_tenants, sizeof key, tenant_order);
	return row != NULL ? row : &r->tenants[r->n_tenants];
}

struct isolation_owner gw_rules_owner(const struct gw_rules *r, struct cgn_str name)
{
	return (struct isolation_owner){name, gw_rules_tenant(r, name)->share};
}
