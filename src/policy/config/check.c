/* SPDX-License-Identifier: Apache-2.0 */
/* config checks that no single row can express: keys that need each other, addresses, names that must be
 * unique. */
#include "policy/breaker/breaker.h"
#include "policy/budget/budget.h"
#include "policy/config/config_priv.h"
#include "policy/passing/passing.h"
#include "policy/routing/document.h"

/* Return the origin of a global key's value. */
static const char *origin_of(const struct config *c, const char *path)
{
	const struct config_key *k = config_key_find(&config_globals, cgn_str_of(path));
	CGN_MUST(k != NULL);
	const char *o = *config_global_slot(c, k).origin;
	return o != NULL ? o : "default";
}

static const char *engine_origin(const struct config *c, size_t engine, const char *key)
{
	const struct config_key *k = config_key_find(&config_engine_keys, cgn_str_of(key));
	CGN_MUST(k != NULL);
	const char *o = *config_engine_slot(c, engine, k).origin;
	return o != NULL ? o : "default";
}

/* "host:port" or "unix:/path"; io/net checks again with the system's means. */
static bool address_shaped(struct cgn_str a)
{
	size_t colon = a.n;
	uint64_t port;
	if (cgn_str_starts(a, "unix:"))
		return a.n > 5;
	while (colon > 0 && a.p[colon - 1] != ':')
		colon--;
	return colon > 1 && cgn_str_u64((struct cgn_str){a.p + colon, a.n - colon}, &port) && port <= 65535;
}

bool config_is_http_url(const char *url)
{
	struct cgn_str s = cgn_str_of(url);
	return (cgn_str_starts(s, "http://") && s.n > 7) || (cgn_str_starts(s, "https://") && s.n > 8);
}

static cgn_rc check_address(const struct config *c, const char *path, const char *value, struct cgn_err *err)
{
	if (address_shaped(cgn_str_of(value)))
		return CGN_OK;
	return CGN_FAIL(err, INVALID, "%s: %s is \"%.100s\", must be host:port, [v6]:port or unix:/path",
		origin_of(c, path), path, value);
}

static cgn_rc check_addresses(const struct config *c, struct cgn_err *err)
{
	CGN_TRY(check_address(c, "router.listen", c->router.listen, err));
	CGN_TRY(check_address(c, "router.listen_grpc", c->router.listen_grpc, err));
	CGN_TRY(check_address(c, "router.listen_admin", c->router.listen_admin, err));
	CGN_TRY(check_address(c, "agent.listen", c->agent.listen, err));
	CGN_TRY(check_address(c, "agent.listen_admin", c->agent.listen_admin, err));
	CGN_TRY(check_address(c, "cluster.router", c->cluster.router, err));
	for (size_t i = 0; i < c->cluster.nodes.n; i++)
		CGN_TRY(check_address(c, "cluster.nodes", c->cluster.nodes.v[i], err));
	if (c->agent.advertise == NULL)
		return CGN_OK;
	CGN_TRY(check_address(c, "agent.advertise", c->agent.advertise, err));
	struct cgn_str a = cgn_str_of(c->agent.advertise);
	if (cgn_str_starts(a, "0.0.0.0:") || cgn_str_starts(a, "[::]:"))
		return CGN_FAIL(err, INVALID,
			"%s: agent.advertise is \"%s\", must be an address at which routers reach this node",
			origin_of(c, "agent.advertise"), c->agent.advertise);
	return CGN_OK;
}

/* Both are set, or neither. */
static cgn_rc check_pair(const struct config *c, const char *cert_path, const char *cert,
	const char *key_path, const char *key, struct cgn_err *err)
{
	if ((cert == NULL) == (key == NULL))
		return CGN_OK;
	const char *have = cert != NULL ? cert_path : key_path, *lack = cert != NULL ? key_path : cert_path;
	return CGN_FAIL(err, INVALID, "%s: %s is set and %s is not: a certificate and its key go together",
		origin_of(c, have), have, lack);
}

static cgn_rc check_security(const struct config *c, struct cgn_err *err)
{
	CGN_TRY(check_pair(c, "security.cert_file", c->security.cert_file, "security.key_file",
		c->security.key_file, err));
	CGN_TRY(check_pair(c, "router.tls_cert_file", c->router.tls_cert_file, "router.tls_key_file",
		c->router.tls_key_file, err));
	CGN_TRY(check_pair(c, "cluster.etcd_cert_file", c->cluster.etcd_cert_file, "cluster.etcd_key_file",
		c->cluster.etcd_key_file, err));
	if (c->security.require_mtls && (c->security.ca_file == NULL || c->security.cert_file == NULL))
		return CGN_FAIL(err, INVALID,
			"%s: security.require_mtls needs security.ca_file, cert_file and key_file (cgn-ctl pki makes them)",
			origin_of(c, "security.require_mtls"));
	if (c->security.crl_file != NULL && c->security.ca_file == NULL)
		return CGN_FAIL(err, INVALID,
			"%s: security.crl_file needs security.ca_file: the CA's signature on the list is checked",
			origin_of(c, "security.crl_file"));
	if (c->security.ca_key_file != NULL && (c->security.ca_file == NULL || c->security.cert_file == NULL))
		return CGN_FAIL(err, INVALID,
			"%s: security.ca_key_file needs security.ca_file, cert_file and key_file (cgn-ctl pki makes them)",
			origin_of(c, "security.ca_key_file"));
	if (c->auth.enabled && c->auth.api_keys_file == NULL && c->auth.oidc_issuer == NULL)
		return CGN_FAIL(err, INVALID,
			"%s: auth.enabled needs auth.api_keys_file (cgn-ctl key create writes it) or auth.oidc_issuer",
			origin_of(c, "auth.enabled"));
	return CGN_OK;
}

/* A server that is asked in clear could be any machine, so it must be this one. */
bool config_is_safe_url(const char *url)
{
	struct cgn_str s = cgn_str_of(url);
	return (cgn_str_starts(s, "https://") && s.n > 8) || cgn_str_starts(s, "http://127.0.0.1:") ||
		cgn_str_starts(s, "http://localhost:") || cgn_str_starts(s, "http://[::1]:");
}

static cgn_rc check_oidc_url(const struct config *c, const char *path, const char *value, struct cgn_err *err)
{
	if (value == NULL || config_is_safe_url(value))
		return CGN_OK;
	return CGN_FAIL(err, INVALID,
		"%s: %s is \"%.100s\", must begin with https:// (http:// only with 127.0.0.1, [::1] or localhost and a port)",
		origin_of(c, path), path, value);
}

static bool ends_with(const char *text, const char *end)
{
	size_t n = strlen(text), m = strlen(end);
	return n >= m && strcmp(text + n - m, end) == 0;
}

static cgn_rc check_oidc(const struct config *c, struct cgn_err *err)
{
	CGN_TRY(check_oidc_url(c, "auth.oidc_issuer", c->auth.oidc_issuer, err));
	CGN_TRY(check_oidc_url(c, "auth.oidc_redirect_url", c->auth.oidc_redirect_url, err));
	if (c->auth.oidc_issuer != NULL && c->auth.oidc_audience == NULL)
		return CGN_FAIL(err, INVALID,
			"%s: auth.oidc_issuer needs auth.oidc_audience: without it tokens for other services would be taken",
			origin_of(c, "auth.oidc_issuer"));
	if (c->auth.oidc_redirect_url != NULL && !ends_with(c->auth.oidc_redirect_url, "/login/done"))
		return CGN_FAIL(err, INVALID,
			"%s: auth.oidc_redirect_url is \"%.100s\", must end with /login/done",
			origin_of(c, "auth.oidc_redirect_url"), c->auth.oidc_redirect_url);
	if (c->auth.oidc_client_id != NULL &&
		(c->auth.oidc_issuer == NULL || c->auth.oidc_redirect_url == NULL))
		return CGN_FAIL(err, INVALID,
			"%s: auth.oidc_client_id needs auth.oidc_issuer and auth.oidc_redirect_url",
			origin_of(c, "auth.oidc_client_id"));
	return CGN_OK;
}

/* A DNS label (RFC 1123), as Kubernetes wants names. */
static bool is_dns_label(const char *s)
{
	size_t n = strlen(s);
	if (n == 0 || n > 63 || s[0] == '-' || s[n - 1] == '-')
		return false;
	return strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789-") == n;
}

static cgn_rc check_state(const struct config *c, struct cgn_err *err)
{
	const char *from = origin_of(c, "cluster.state_backend");
	if (c->cluster.state_backend == STATE_ETCD && c->cluster.etcd_endpoints.n == 0)
		return CGN_FAIL(err, INVALID,
			"%s: cluster.state_backend = \"etcd\" needs cluster.etcd_endpoints", from);
	if (c->cluster.state_backend == STATE_STATIC && c->cluster.nodes.n == 0)
		return CGN_FAIL(err, INVALID, "%s: cluster.state_backend = \"static\" needs cluster.nodes",
			from);
	if (c->cluster.state_backend == STATE_KUBERNETES && !is_dns_label(c->cluster.name))
		return CGN_FAIL(err, INVALID,
			"%s: with cluster.state_backend = \"kubernetes\" cluster.name \"%.64s\" must have only a to z, 0 to 9 and '-', at most 63",
			origin_of(c, "cluster.name"), c->cluster.name);
	for (size_t i = 0; i < c->cluster.etcd_endpoints.n; i++)
		if (!config_is_http_url(c->cluster.etcd_endpoints.v[i]))
			return CGN_FAIL(err, INVALID,
				"%s: cluster.etcd_endpoints has \"%.100s\", must be http://host:port or https://host:port",
				origin_of(c, "cluster.etcd_endpoints"), c->cluster.etcd_endpoints.v[i]);
	if (c->agent.heartbeat > c->cluster.lease / 3)
		return CGN_FAIL(err, INVALID,
			"%s: agent.heartbeat must be at most a third of cluster.lease (%s), or one lost heartbeat costs a node its place",
			origin_of(c, "agent.heartbeat"), origin_of(c, "cluster.lease"));
	return CGN_OK;
}

static cgn_rc check_weights(const struct config *c, struct cgn_err *err)
{
	double sum = c->router.score_weights.kv + c->router.score_weights.load +
		c->router.score_weights.power + c->router.score_weights.capacity;
	if (sum >= 0.999 && sum <= 1.001)
		return CGN_OK;
	return CGN_FAIL(err, INVALID,
		"router.score_weights: kv (%s) + load (%s) + power (%s) + capacity (%s) is %.4g, must be 1.0",
		origin_of(c, "router.score_weights.kv"), origin_of(c, "router.score_weights.load"),
		origin_of(c, "router.score_weights.power"), origin_of(c, "router.score_weights.capacity"),
		sum);
}

/* io/zmtp checks again with the system's means. */
bool config_is_zmq_endpoint(const char *text)
{
	struct cgn_str s = cgn_str_of(text);
	return (cgn_str_starts(s, "tcp://") && address_shaped((struct cgn_str){s.p + 6, s.n - 6})) ||
		cgn_str_starts(s, "ipc:///");
}

static cgn_rc check_kv_events(const struct config *c, size_t i, struct cgn_err *err)
{
	const struct config_engine *e = &c->engines[i];
	const char *const rows[][2] = {{"kv_events", e->kv_events},
		{"kv_events_replay", e->kv_events_replay}};
	for (size_t k = 0; k < CGN_COUNT(rows); k++)
		if (rows[k][1] != NULL && strcmp(rows[k][1], "none") != 0 &&
			!config_is_zmq_endpoint(rows[k][1]))
			return CGN_FAIL(err, INVALID,
				"%s: engine %s is \"%.100s\", must be tcp://host:port, ipc:///path or none",
				engine_origin(c, i, rows[k][0]), rows[k][0], rows[k][1]);
	if (e->kv_events_replay != NULL && e->kv_events == NULL)
		return CGN_FAIL(err, INVALID,
			"%s: engine kv_events_replay needs kv_events, the endpoint of the events themselves",
			engine_origin(c, i, "kv_events_replay"));
	return CGN_OK;
}

static cgn_rc check_unit(const struct config *c, size_t i, struct cgn_err *err)
{
	static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789:-_.\\@";
	const struct config_engine *e = &c->engines[i];
	const char *unit = e->systemd_unit;
	if (unit == NULL)
		return CGN_OK;
	if (e->managed)
		return CGN_FAIL(err, INVALID,
			"%s: systemd runs the unit of systemd_unit, so managed = true is not for engine \"%s\"",
			engine_origin(c, i, "systemd_unit"), e->name);
	if (unit[strspn(unit, letters)] != '\0' || unit[0] == '-')
		return CGN_FAIL(err, INVALID, "%s: \"%s\" is no name of a unit, such as vllm.service",
			engine_origin(c, i, "systemd_unit"), unit);
	return CGN_OK;
}

char config_file_char(char c)
{
	return c == '/' || c == '.' || (unsigned char)c <= ' ' ? '_' : c;
}

/* Would two engines of these names have the same files? */
static bool files_are_shared(const char *a, const char *b)
{
	while (*a != '\0' && config_file_char(*a) == config_file_char(*b)) {
		a++;
		b++;
	}
	return *a == *b;
}

static cgn_rc check_engine(const struct config *c, size_t i, struct cgn_err *err)
{
	const struct config_engine *e = &c->engines[i];
	int table = c->store->engine_tables[i].kind;
	if (table != CONFIG_ENUM_START_ && table != e->kind)
		return CGN_FAIL(err, INVALID, "%s: a table for %s, but the engine's kind is %s (%s)",
			c->store->engine_tables[i].place, config_enum_text(table), config_enum_text(e->kind),
			engine_origin(c, i, "kind"));
	if (e->managed && e->kind == ENGINE_OPENAI_COMPAT)
		return CGN_FAIL(err, INVALID,
			"%s: managed = true is not for kind openai_compat, which may be any program; start it yourself and give its url, or name its kind",
			engine_origin(c, i, "managed"));
	CGN_TRY(check_unit(c, i, err));
	if (!config_is_http_url(e->url))
		return CGN_FAIL(err, INVALID, "%s: engine url must be http://host:port or https://host:port",
			engine_origin(c, i, "url"));
	CGN_TRY(check_kv_events(c, i, err));
	for (size_t j = 0; j < i; j++) {
		if (strcmp(c->engines[j].name, e->name) == 0)
			return CGN_FAIL(err, INVALID, "%s: two engines are called \"%s\"",
				engine_origin(c, i, "name"), e->name);
		if (files_are_shared(c->engines[j].name, e->name))
			return CGN_FAIL(err, INVALID,
				"%s: the engines \"%.64s\" and \"%.64s\" would have the same files, whose names have _ for . and / and blanks: rename one",
				engine_origin(c, i, "name"), c->engines[j].name, e->name);
	}
	return CGN_OK;
}

static size_t engine_called(const struct config *c, const char *name)
{
	size_t i = 0;
	while (i < c->n_engines && strcmp(c->engines[i].name, name) != 0)
		i++;
	return i;
}

bool config_is_on_demand(const struct config *c, const struct config_engine *e)
{
	return e->managed && (c->agent.max_loaded > 0 || c->agent.memory > 0 || e->keep_alive > 0);
}

static cgn_rc check_on_demand(const struct config *c, size_t i, struct cgn_err *err)
{
	const struct config_engine *e = &c->engines[i];
	if (e->keep_alive > 0 && !e->managed)
		return CGN_FAIL(err, INVALID,
			"%s: keep_alive is for managed engines, and engine \"%s\" is not managed",
			engine_origin(c, i, "keep_alive"), e->name);
	if (!config_is_on_demand(c, e))
		return CGN_OK;
	if (e->model == NULL)
		return CGN_FAIL(err, INVALID,
			"%s: engine \"%s\" is loaded on demand (agent.max_loaded, agent.memory or keep_alive) and has no model: set the name that clients ask for, because an engine that is not loaded cannot tell it",
			engine_origin(c, i, "model"), e->name);
	if (e->orphan_time > 0)
		return CGN_FAIL(err, INVALID,
			"%s: engine \"%s\" is loaded on demand (agent.max_loaded, agent.memory or keep_alive): its orphan_time must be 0, because an agent that starts anew counts no engine as loaded",
			engine_origin(c, i, "orphan_time"), e->name);
	if (c->agent.memory > 0 && e->memory > c->agent.memory)
		return CGN_FAIL(err, INVALID,
			"%s: engine \"%s\" takes %llu bytes of memory, more than agent.memory, %llu: it could never be loaded",
			engine_origin(c, i, "memory"), e->name, (unsigned long long)e->memory,
			(unsigned long long)c->agent.memory);
	return CGN_OK;
}

static cgn_rc check_start_after(const struct config *c, size_t i, struct cgn_err *err)
{
	const struct config_engine *e = &c->engines[i];
	if (e->start_after.n > 0 && !e->managed)
		return CGN_FAIL(err, INVALID,
			"%s: start_after is for managed engines, and engine \"%s\" is not managed",
			engine_origin(c, i, "start_after"), e->name);
	for (size_t k = 0; k < e->start_after.n; k++)
		if (engine_called(c, e->start_after.v[k]) == c->n_engines)
			return CGN_FAIL(err, INVALID,
				"%s: start_after names \"%.64s\", and no engine has that name",
				engine_origin(c, i, "start_after"), e->start_after.v[k]);
	return CGN_OK;
}

/* True when the engine waits for none but those that |starts| names. */
static bool can_start(const struct config *c, size_t i, const bool *starts)
{
	for (size_t k = 0; k < c->engines[i].start_after.n; k++)
		if (!starts[engine_called(c, c->engines[i].start_after.v[k])])
			return false;
	return true;
}

/* Start in thought whatever can start, until nothing more can. */
static cgn_rc check_start_order(const struct config *c, struct cgn_err *err)
{
	bool starts[CONFIG_MAX_ENGINES] = {false}, more = true;
	size_t n = c->n_engines;
	CGN_MUST(n <= CONFIG_MAX_ENGINES);
	for (size_t i = 0; i < n; i++)
		CGN_TRY(check_start_after(c, i, err));
	while (more) {
		more = false;
		for (size_t i = 0; i < n; i++)
			if (!starts[i] && can_start(c, i, starts))
				starts[i] = more = true;
	}
	for (size_t i = 0; i < n; i++)
		if (!starts[i])
			return CGN_FAIL(err, INVALID,
				"%s: engine \"%s\" waits for itself: start_after goes in a circle",
				engine_origin(c, i, "start_after"), c->engines[i].name);
	return CGN_OK;
}

static cgn_rc check_name(const struct config *c, size_t i, const char *name, bool again, struct cgn_err *err)
{
	const struct config_model *m = &c->models[i], *holder = config_model_find(c, name);
	if (holder == m && !again)
		return CGN_OK;
	size_t at = c->models[i].aliases.n > 0 ? i : (size_t)(holder - c->models);
	return CGN_FAIL(err, INVALID,
		"%s: \"%.100s\" names model \"%.100s\" and model \"%.100s\"; an alias is given once",
		*config_row_slot(c, &config_families[CONFIG_MODELS], at, &config_model_keys.keys[0]).origin,
		name, m->name, holder->name);
}

static const char *model_origin(const struct config *c, size_t model, const char *key)
{
	const struct config_key *k = config_key_find(&config_model_keys, cgn_str_of(key));
	CGN_MUST(k != NULL);
	const char *o = *config_row_slot(c, &config_families[CONFIG_MODELS], model, k).origin;
	return o != NULL ? o : "default";
}

static cgn_rc check_tokens(const struct config *c, size_t i, struct cgn_err *err)
{
	const struct config_model *m = &c->models[i];
	if (m->tokens == TOKENS_FILE && m->tokenizer == NULL)
		return CGN_FAIL(err, INVALID,
			"%s: model \"%.100s\" has tokens = \"file\" and no tokenizer: name its tokenizer.json",
			model_origin(c, i, "tokens"), m->name);
	if (m->chat_template != NULL && m->tokenizer == NULL)
		return CGN_FAIL(err, INVALID,
			"%s: model \"%.100s\" has a chat_template and no tokenizer: the template alone makes no tokens",
			model_origin(c, i, "chat_template"), m->name);
	return CGN_OK;
}

/* config_model_find searches linearly, so the total number of aliases is bounded too. */
static cgn_rc check_models(const struct config *c, struct cgn_err *err)
{
	size_t n = 0;
	for (size_t i = 0; i < c->n_models; i++) {
		const struct config_model *m = &c->models[i];
		n += m->aliases.n;
		if (n > CONFIG_MAX_MODELS)
			return CGN_FAIL(err, INVALID, "models: more than %d aliases in all",
				CONFIG_MAX_MODELS);
		CGN_TRY(check_name(c, i, m->name, false, err));
		CGN_TRY(check_tokens(c, i, err));
		for (size_t j = 0; j < m->aliases.n; j++) {
			bool again = strcmp(m->name, m->aliases.v[j]) == 0;
			for (size_t k = 0; k < j; k++)
				again = again || strcmp(m->aliases.v[k], m->aliases.v[j]) == 0;
			CGN_TRY(check_name(c, i, m->aliases.v[j], again, err));
		}
	}
	return CGN_OK;
}

/* A model is not asked twice for one answer. */
static cgn_rc check_chain(const struct config *c, size_t i, struct cgn_err *err)
{
	const struct config_model *m = &c->models[i];
	for (size_t k = 0; k < m->cascade.n; k++) {
		bool again = config_model_find(c, m->cascade.v[k]) == m;
		for (size_t j = 0; j < k; j++)
			again = again || strcmp(m->cascade.v[j], m->cascade.v[k]) == 0;
		if (again)
			return CGN_FAIL(err, INVALID,
				"%s: the cascade of model \"%.100s\" has \"%.100s\" twice: name each smaller model once, and not the model itself",
				model_origin(c, i, "cascade"), m->name, m->cascade.v[k]);
	}
	return CGN_OK;
}

static cgn_rc check_cascade(const struct config *c, struct cgn_err *err)
{
	const char *small = c->router.cascade.small_model, *large = c->router.cascade.large_model;
	for (size_t i = 0; i < c->n_models; i++)
		CGN_TRY(check_chain(c, i, err));
	if ((small == NULL) != (large == NULL))
		return CGN_FAIL(err, INVALID,
			"%s: router.cascade has a %s and no %s: set both, or models.NAME.cascade",
			origin_of(c,
				small != NULL ? "router.cascade.small_model" : "router.cascade.large_model"),
			small != NULL ? "small_model" : "large_model",
			small != NULL ? "large_model" : "small_model");
	if (small != NULL && strcmp(small, large) == 0)
		return CGN_FAIL(err, INVALID,
			"%s: router.cascade.small_model and large_model are both \"%.100s\"",
			origin_of(c, "router.cascade.small_model"), small);
	return CGN_OK;
}

/* A tenant's name must be a word, because it stands in a line of the key file. */
static cgn_rc check_tenants(const struct config *c, struct cgn_err *err)
{
	for (size_t i = 0; i < c->n_tenants; i++)
		for (const char *p = c->tenants[i].name; *p != '\0'; p++)
			if (*p <= ' ' || *p > '~')
				return CGN_FAIL(err, INVALID,
					"tenants.\"%.100s\": a tenant's name has visible ASCII characters only, no spaces",
					c->tenants[i].name);
	return CGN_OK;
}

static cgn_rc check_budgets(const struct config *c, const struct config_tenant *t, struct cgn_err *err)
{
	struct budget_set set = {0};
	struct cgn_err why;
	for (size_t i = 0; i < t->budgets.n; i++)
		if (!cgn_ok(budget_set_add(&set, cgn_str_of(t->budgets.v[i]), &why)))
			return CGN_FAIL(err, INVALID, "tenants.\"%.64s\".budgets: %s", t->name, why.msg);
	const char *money = budget_set_currency(&set);
	if (money != NULL && strcmp(money, c->router.currency) != 0)
		return CGN_FAIL(err, INVALID,
			"tenants.\"%.64s\".budgets: a budget in %s, but router.currency is %.8s", t->name,
			money, c->router.currency);
	return CGN_OK;
}

static cgn_rc check_money(const struct config *c, struct cgn_err *err)
{
	const char *p = c->router.currency;
	while (*p >= 'A' && *p <= 'Z')
		p++;
	if (*p != '\0')
		return CGN_FAIL(err, INVALID,
			"%s: router.currency is \"%.8s\", must be three capitals, such as EUR",
			origin_of(c, "router.currency"), c->router.currency);
	for (size_t i = 0; i < c->n_tenants; i++)
		CGN_TRY(check_budgets(c, &c->tenants[i], err));
	return CGN_OK;
}

static cgn_rc check_retry(const struct config *c, struct cgn_err *err)
{
	const struct config_list *on = &c->router.retry.on;
	for (size_t i = 0; i < on->n; i++) {
		if (breaker_failure_bit(on->v[i]) != 0)
			continue;
		CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf words = {0};
		breaker_failure_words(&words);
		return CGN_FAIL(err, INVALID, "%s: router.retry.on has \"%.40s\", must be some of: %s",
			origin_of(c, "router.retry.on"), on->v[i], cgn_buf_z(&words));
	}
	return CGN_OK;
}

/* A cookie's name is a token of RFC 6265. */
static cgn_rc check_cookie(const struct config *c, struct cgn_err *err)
{
	const char *name = c->router.session_cookie;
	for (const char *p = name; p != NULL && *p != '\0'; p++)
		if (*p <= ' ' || *p > '~' || strchr("()<>@,;:\\\"/[]?={}", *p) != NULL)
			return CGN_FAIL(err, INVALID,
				"%s: router.session_cookie \"%.64s\" is no name of a cookie: letters, digits and -_.!#$%%&'*+^`|~",
				origin_of(c, "router.session_cookie"), name);
	return CGN_OK;
}

static cgn_rc check_access_log(const struct config *c, struct cgn_err *err)
{
	const char *to = c->router.access_log;
	if (strcmp(to, "stderr") == 0 || strcmp(to, "off") == 0 || strchr(to, '/') != NULL)
		return CGN_OK;
	return CGN_FAIL(err, INVALID,
		"%s: router.access_log is \"%.100s\", must be stderr, off, or the path of a file with a slash in it",
		origin_of(c, "router.access_log"), to);
}

static cgn_rc check_passing(const struct config *c, struct cgn_err *err)
{
	const struct config_list *routes = &c->router.extra_routes, *headers = &c->router.pass_headers;
	struct passing_route unused;
	struct cgn_err why;
	for (size_t i = 0; i < routes->n; i++)
		if (!cgn_ok(passing_route_read(routes->v[i], &unused, &why)))
			return CGN_FAIL(err, INVALID, "%s: router.extra_routes: %s",
				origin_of(c, "router.extra_routes"), why.msg);
	for (size_t i = 0; i < headers->n; i++)
		if (!cgn_ok(passing_header_check(headers->v[i], &why)))
			return CGN_FAIL(err, INVALID, "%s: router.pass_headers: %s",
				origin_of(c, "router.pass_headers"), why.msg);
	return CGN_OK;
}

static cgn_rc check_shadow(const struct config *c, struct cgn_err *err)
{
	const struct config_list *shadow = &c->router.shadow;
	enum route_policy unused;
	struct cgn_err why;
	for (size_t i = 0; i < shadow->n; i++)
		if (!cgn_ok(route_document_policy(cgn_str_of(shadow->v[i]), &unused, &why)))
			return CGN_FAIL(err, INVALID, "%s: router.shadow: %s", origin_of(c, "router.shadow"),
				why.msg);
	return CGN_OK;
}

/* io/redis parses the whole URL. The message does not contain the value, which may have a password. */
static cgn_rc check_redis(const struct config *c, struct cgn_err *err)
{
	const char *url = c->router.rate_limit.redis_url;
	struct cgn_str s = cgn_str_of(url);
	if (url == NULL || cgn_str_starts(s, "redis://") || cgn_str_starts(s, "rediss://") ||
		cgn_str_starts(s, "unix:"))
		return CGN_OK;
	return CGN_FAIL(err, INVALID,
		"%s: router.rate_limit.redis_url must begin with redis://, rediss:// or unix:",
		origin_of(c, "router.rate_limit.redis_url"));
}

static cgn_rc check_hook_url(const struct config *c, const char *path, const char *url, struct cgn_err *err)
{
	if (url == NULL || config_is_http_url(url))
		return CGN_OK;
	return CGN_FAIL(err, INVALID,
		"%s: %s is \"%.100s\", must be http://HOST[:PORT]/PATH or https://HOST[:PORT]/PATH",
		origin_of(c, path), path, url);
}

/* The router parses the whole URLs. */
static cgn_rc check_hooks(const struct config *c, struct cgn_err *err)
{
	CGN_TRY(check_hook_url(c, "hooks.before_url", c->hooks.before_url, err));
	CGN_TRY(check_hook_url(c, "hooks.after_url", c->hooks.after_url, err));
	if (c->hooks.after_window > c->hooks.max_body)
		return CGN_FAIL(err, INVALID,
			"%s: hooks.after_window (%llu bytes) is larger than hooks.max_body (%llu): no window would ever be full",
			origin_of(c, "hooks.after_window"), (unsigned long long)c->hooks.after_window,
			(unsigned long long)c->hooks.max_body);
	return CGN_OK;
}

static cgn_rc check_replicas(const struct config *c, struct cgn_err *err)
{
	for (size_t i = 0; i < c->n_models; i++) {
		struct config_replicas unused;
		if (c->models[i].replicas != NULL &&
			!config_replicas_read(cgn_str_of(c->models[i].replicas), &unused))
			return CGN_FAIL(err, INVALID,
				"models.\"%s\".replicas is \"%s\", must be the least and the most, such as \"1-4\"; the most is at least 1",
				c->models[i].name, c->models[i].replicas);
	}
	return CGN_OK;
}

/* Nodes that are not there yet cannot be counted, and a model without a node is unknown: the limits have to be said. */
static cgn_rc check_scale_target(const struct config *c, struct cgn_err *err)
{
	const int target = c->router.autoscaler.target;
	if (target == CONFIG_SCALE_AGENTS)
		return CGN_OK;
	if (target == CONFIG_SCALE_EXEC && c->router.autoscaler.exec.n == 0)
		return CGN_FAIL(err, INVALID,
			"router.autoscaler.target is exec, and router.autoscaler.exec names no program: set it to the program and its arguments, such as [\"/usr/local/bin/scale\", \"--group\", \"gpu\"]");
	if (target == CONFIG_SCALE_WEBHOOK && c->router.autoscaler.webhook_url == NULL)
		return CGN_FAIL(err, INVALID,
			"router.autoscaler.target is webhook, and router.autoscaler.webhook_url is not set");
	if (c->router.autoscaler.max_replicas == 0 || c->router.autoscaler.min_replicas == 0)
		return CGN_FAIL(err, INVALID,
			"router.autoscaler.target is %s: min_replicas and max_replicas have to be at least 1 (they are %u and %u)",
			config_enum_text(target), c->router.autoscaler.min_replicas,
			c->router.autoscaler.max_replicas);
	return check_hook_url(c, "router.autoscaler.webhook_url", c->router.autoscaler.webhook_url, err);
}

static cgn_rc check_autoscaler(const struct config *c, struct cgn_err *err)
{
	CGN_TRY(check_replicas(c, err));
	if (!c->router.autoscaler.enabled)
		return CGN_OK;
	CGN_TRY(check_scale_target(c, err));
	if (c->router.autoscaler.max_replicas > 0 &&
		c->router.autoscaler.max_replicas < c->router.autoscaler.min_replicas)
		return CGN_FAIL(err, INVALID,
			"%s: router.autoscaler.max_replicas (%u) is less than router.autoscaler.min_replicas (%u)",
			origin_of(c, "router.autoscaler.max_replicas"), c->router.autoscaler.max_replicas,
			c->router.autoscaler.min_replicas);
	if (c->router.energy.park != CONFIG_PARK_OFF)
		return CGN_FAIL(err, INVALID,
			"%s: router.energy.park and router.autoscaler.enabled both decide which engines rest: set park to off, the autoscaler spares the same energy",
			origin_of(c, "router.energy.park"));
	return CGN_OK;
}

CGN_RC config_check(struct config *c, struct cgn_err *err)
{
	CGN_TRY(check_addresses(c, err));
	CGN_TRY(check_security(c, err));
	CGN_TRY(check_oidc(c, err));
	CGN_TRY(check_state(c, err));
	CGN_TRY(check_weights(c, err));
	CGN_TRY(check_cookie(c, err));
	CGN_TRY(check_retry(c, err));
	CGN_TRY(config_check_batch(c, err));
	CGN_TRY(check_cascade(c, err));
	CGN_TRY(check_shadow(c, err));
	CGN_TRY(check_passing(c, err));
	CGN_TRY(check_access_log(c, err));
	for (size_t i = 0; i < c->n_engines; i++)
		CGN_TRY(check_engine(c, i, err));
	CGN_TRY(check_start_order(c, err));
	for (size_t i = 0; i < c->n_engines; i++)
		CGN_TRY(check_on_demand(c, i, err));
	CGN_TRY(check_tenants(c, err));
	CGN_TRY(check_money(c, err));
	CGN_TRY(check_redis(c, err));
	CGN_TRY(check_hooks(c, err));
	CGN_TRY(config_check_peers(c, err));
	CGN_TRY(config_check_engine_nodes(c, err));
	CGN_TRY(config_check_sites(c, err));
	CGN_TRY(check_autoscaler(c, err));
	return check_models(c, err);
}
