/* SPDX-License-Identifier: Apache-2.0 */
/* config checks that no single row can express and no other room has: addresses, certificates, names that must be
 * unique. policy/fleet/settings adds those of the other rooms. */
#include "policy/config/config_priv.h"

const char *config_origin(const struct config *c, const char *path)
{
	const struct config_key *k = config_key_find(&config_globals, cgn_str_of(path));
	CGN_MUST(k != NULL);
	const char *o = *config_global_slot(c, k).origin;
	return o != NULL ? o : "default";
}

const char *config_engine_origin(const struct config *c, size_t engine, const char *key)
{
	const struct config_key *k = config_key_find(&config_engine_keys, cgn_str_of(key));
	CGN_MUST(k != NULL);
	const char *o = *config_engine_slot(c, engine, k).origin;
	return o != NULL ? o : "default";
}

const char *config_model_origin(const struct config *c, size_t model, const char *key)
{
	const struct config_key *k = config_key_find(&config_model_keys, cgn_str_of(key));
	CGN_MUST(k != NULL);
	const char *o = *config_row_slot(c, &config_families[CONFIG_MODELS], model, k).origin;
	return o != NULL ? o : "default";
}

/* "host:port" or "unix:/path"; io/net/net checks again with the system's means. */
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

/* A server that is asked in clear could be any machine, so it must be this one. */
bool config_is_safe_url(const char *url)
{
	struct cgn_str s = cgn_str_of(url);
	return (cgn_str_starts(s, "https://") && s.n > 8) || cgn_str_starts(s, "http://127.0.0.1:") ||
		cgn_str_starts(s, "http://localhost:") || cgn_str_starts(s, "http://[::1]:");
}

/* io/wire/zmtp checks again with the system's means. */
bool config_is_zmq_endpoint(const char *text)
{
	struct cgn_str s = cgn_str_of(text);
	return (cgn_str_starts(s, "tcp://") && address_shaped((struct cgn_str){s.p + 6, s.n - 6})) ||
		cgn_str_starts(s, "ipc:///");
}

CGN_RC config_check_url(const struct config *c, const char *path, const char *url, struct cgn_err *err)
{
	if (url == NULL || config_is_http_url(url))
		return CGN_OK;
	return CGN_FAIL(err, INVALID,
		"%s: %s is \"%.100s\", must be http://HOST[:PORT]/PATH or https://HOST[:PORT]/PATH",
		config_origin(c, path), path, url);
}

bool config_peer_model_read(struct cgn_str text, struct cgn_str *ours, struct cgn_str *theirs)
{
	bool renamed = memchr(text.p, '=', text.n) != NULL;
	*ours = cgn_str_trim(cgn_str_split(&text, '='));
	*theirs = renamed ? cgn_str_trim(text) : *ours;
	return ours->n > 0 && theirs->n > 0;
}

char config_file_char(char c)
{
	return c == '/' || c == '.' || (unsigned char)c <= ' ' ? '_' : c;
}

bool config_is_on_demand(const struct config *c, const struct config_engine *e)
{
	return e->managed && (c->agent.max_loaded > 0 || c->agent.memory > 0 || e->keep_alive > 0);
}

static cgn_rc check_address(const struct config *c, const char *path, const char *value, struct cgn_err *err)
{
	if (address_shaped(cgn_str_of(value)))
		return CGN_OK;
	return CGN_FAIL(err, INVALID, "%s: %s is \"%.100s\", must be host:port, [v6]:port or unix:/path",
		config_origin(c, path), path, value);
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
			config_origin(c, "agent.advertise"), c->agent.advertise);
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
		config_origin(c, have), have, lack);
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
			config_origin(c, "security.require_mtls"));
	if (c->security.crl_file != NULL && c->security.ca_file == NULL)
		return CGN_FAIL(err, INVALID,
			"%s: security.crl_file needs security.ca_file: the CA's signature on the list is checked",
			config_origin(c, "security.crl_file"));
	if (c->security.ca_key_file != NULL && (c->security.ca_file == NULL || c->security.cert_file == NULL))
		return CGN_FAIL(err, INVALID,
			"%s: security.ca_key_file needs security.ca_file, cert_file and key_file (cgn-ctl pki makes them)",
			config_origin(c, "security.ca_key_file"));
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
	const char *from = config_origin(c, "cluster.state_backend");
	if (c->cluster.state_backend == STATE_ETCD && c->cluster.etcd_endpoints.n == 0)
		return CGN_FAIL(err, INVALID,
			"%s: cluster.state_backend = \"etcd\" needs cluster.etcd_endpoints", from);
	if (c->cluster.state_backend == STATE_STATIC && c->cluster.nodes.n == 0)
		return CGN_FAIL(err, INVALID, "%s: cluster.state_backend = \"static\" needs cluster.nodes",
			from);
	if (c->cluster.state_backend == STATE_KUBERNETES && !is_dns_label(c->cluster.name))
		return CGN_FAIL(err, INVALID,
			"%s: with cluster.state_backend = \"kubernetes\" cluster.name \"%.64s\" must have only a to z, 0 to 9 and '-', at most 63",
			config_origin(c, "cluster.name"), c->cluster.name);
	for (size_t i = 0; i < c->cluster.etcd_endpoints.n; i++)
		if (!config_is_http_url(c->cluster.etcd_endpoints.v[i]))
			return CGN_FAIL(err, INVALID,
				"%s: cluster.etcd_endpoints has \"%.100s\", must be http://host:port or https://host:port",
				config_origin(c, "cluster.etcd_endpoints"), c->cluster.etcd_endpoints.v[i]);
	if (c->agent.heartbeat > c->cluster.lease / 3)
		return CGN_FAIL(err, INVALID,
			"%s: agent.heartbeat must be at most a third of cluster.lease (%s), or one lost heartbeat costs a node its place",
			config_origin(c, "agent.heartbeat"), config_origin(c, "cluster.lease"));
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

static cgn_rc check_access_log(const struct config *c, struct cgn_err *err)
{
	const char *to = c->router.access_log;
	if (strcmp(to, "stderr") == 0 || strcmp(to, "off") == 0 || strchr(to, '/') != NULL)
		return CGN_OK;
	return CGN_FAIL(err, INVALID,
		"%s: router.access_log is \"%.100s\", must be stderr, off, or the path of a file with a slash in it",
		config_origin(c, "router.access_log"), to);
}

/* [engines.vllm] is a table for one kind. */
static cgn_rc check_engine_table(const struct config *c, size_t i, struct cgn_err *err)
{
	const struct config_engine *e = &c->engines[i];
	int table = c->store->engine_tables[i].kind;
	if (table == CONFIG_ENUM_START_ || table == e->kind)
		return CGN_OK;
	return CGN_FAIL(err, INVALID, "%s: a table for %s, but the engine's kind is %s (%s)",
		c->store->engine_tables[i].place, config_enum_text(table), config_enum_text(e->kind),
		config_engine_origin(c, i, "kind"));
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

static cgn_rc check_tokens(const struct config *c, size_t i, struct cgn_err *err)
{
	const struct config_model *m = &c->models[i];
	if (m->tokens == TOKENS_FILE && m->tokenizer == NULL)
		return CGN_FAIL(err, INVALID,
			"%s: model \"%.100s\" has tokens = \"file\" and no tokenizer: name its tokenizer.json",
			config_model_origin(c, i, "tokens"), m->name);
	if (m->chat_template != NULL && m->tokenizer == NULL)
		return CGN_FAIL(err, INVALID,
			"%s: model \"%.100s\" has a chat_template and no tokenizer: the template alone makes no tokens",
			config_model_origin(c, i, "chat_template"), m->name);
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

CGN_RC config_check(const struct config *c, struct cgn_err *err)
{
	CGN_TRY(check_addresses(c, err));
	CGN_TRY(check_security(c, err));
	CGN_TRY(check_state(c, err));
	CGN_TRY(check_access_log(c, err));
	for (size_t i = 0; i < c->n_engines; i++)
		CGN_TRY(check_engine_table(c, i, err));
	CGN_TRY(check_tenants(c, err));
	return check_models(c, err);
}
