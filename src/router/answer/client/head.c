/* SPDX-License-Identifier: Apache-2.0 */
/* head: reads a request's head. */
#include "base/codec/codec.h"
#include "base/crypto/crypto.h"
#include "base/mix/mix.h"
#include "policy/who/auth/auth.h"
#include "router/answer/client/client_priv.h"
#include "router/request/trace/trace.h"

#define ID_MAX 128
#define SUBSET "x-gateway-destination-endpoint-subset" /* Gateway API Inference Extension. */

static bool id_is_ok(struct cgn_str s)
{
	for (size_t i = 0; i < s.n; i++) {
		unsigned char c = (unsigned char)s.p[i];
		if (c <= ' ' || c > '~' || c == '"' || c == '\\' || c == ',' || c == ';')
			return false;
	}
	return s.n > 0 && s.n <= ID_MAX;
}

static bool id_take(struct gw_req *r, struct cgn_str given)
{
	uint64_t a = mix_splitmix(&r->w->random), b = mix_splitmix(&r->w->random);
	r->client.own = cgn_str_of(cgn_arena_fmt(&r->arena, "req-%016llx%08x", (unsigned long long)a,
		(unsigned)(b & 0xffffffffU)));
	r->client.id = id_is_ok(given) ? cgn_arena_str(&r->arena, given) : r->client.own;
	r->client.name = r->client.id;
	return r->client.own.p != NULL && r->client.id.p != NULL;
}

/* Return the client's Idempotency-Key as the tenant's own: a hosted API answers with what it answered under the key before,
 * and knows only the operator's account. */
static struct cgn_str idempotency_bind(struct gw_req *r, struct cgn_str key)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.limit = 65536}, hex = {.limit = 128};
	cgn_buf_str(&text, r->identity.tenant);
	cgn_buf_char(&text, '\0');
	cgn_buf_str(&text, key);
	const struct sha256 sum = crypto_sha256(cgn_buf_view(&text));
	hex_put(&hex, (struct cgn_str){(const char *)sum.b, sizeof sum.b});
	return text.bad || hex.bad ? (struct cgn_str){NULL, 0} : cgn_arena_str(&r->arena, cgn_buf_view(&hex));
}

enum gw_step gw_head_bind(struct gw_req *r)
{
	if (!gw_identity_has_tenant(&r->identity))
		return STEP_AGAIN;
	r->client.name = r->client.own;
	for (size_t i = 0; i < r->client.n_headers; i++) {
		struct proto_header *h = &r->client.headers[i];
		if (cgn_str_is(h->name, "x-request-id"))
			h->value = r->client.name;
		else if (cgn_str_is(h->name, "idempotency-key"))
			h->value = idempotency_bind(r, h->value);
		if (h->value.p == NULL)
			return gw_refuse_no_memory(r, "memory");
	}
	return STEP_AGAIN;
}

/* Return true for a field of the client's head that engines get. Keys, cookies and all else that says who the
 * client is stay here; so does X-Cgn-Subject, which only the router may state. */
static bool is_forwarded(const struct gw_rules *rules, struct cgn_str name)
{
	static const char *const names[] = {"content-type", "accept", "traceparent", "tracestate",
		"idempotency-key"};
	for (size_t i = 0; i < CGN_COUNT(names); i++)
		if (cgn_str_is(name, names[i]))
			return true;
	for (size_t i = 0; i < rules->pass.n_headers; i++)
		if (cgn_str_eq(name, rules->pass.headers[i]))
			return true;
	/* The organization and project belong to the client's key, and the engine is asked with the operator's. */
	bool account = cgn_str_is(name, "openai-organization") || cgn_str_is(name, "openai-project");
	return cgn_str_starts(name, "anthropic-") || (cgn_str_starts(name, "openai-") && !account);
}

static bool headers_take(struct gw_req *r, const struct http_head *h)
{
	r->client.headers = cgn_arena_get(&r->arena, (h->n_fields + 2) * sizeof *r->client.headers);
	if (r->client.headers == NULL)
		return false;
	for (size_t i = 0; i < h->n_fields && r->client.n_headers < PROTO_MAX_HEADERS - 1; i++) {
		if (!is_forwarded(r->w->rules, h->fields[i].name))
			continue;
		struct proto_header *to = &r->client.headers[r->client.n_headers++];
		to->name = cgn_arena_str(&r->arena, h->fields[i].name);
		to->value = cgn_arena_str(&r->arena, h->fields[i].value);
		if (to->name.p == NULL || to->value.p == NULL)
			return false;
	}
	r->client.headers[r->client.n_headers++] =
		(struct proto_header){CGN_STR("x-request-id"), r->client.id};
	gw_trace_begin(r, http_head_get(h, "traceparent"));
	return true;
}

static bool field_take(struct gw_req *r, const struct http_head *h, const char *name, struct cgn_str *out)
{
	struct cgn_str v = http_head_get(h, name);
	*out = v.n > 0 ? cgn_arena_str(&r->arena, v) : (struct cgn_str){NULL, 0};
	return v.n == 0 || out->p != NULL;
}

/* Note whether the head shows two different keys, in any of the fields that have one. */
static bool keys_compare(struct gw_req *r, const struct http_head *h)
{
	struct cgn_str first = {NULL, 0};
	for (size_t i = 0; i < h->n_fields; i++) {
		const struct http_field *f = &h->fields[i];
		struct cgn_str key = {NULL, 0};
		if (cgn_str_eq_nocase(f->name, CGN_STR("x-api-key")))
			key = cgn_str_trim(f->value);
		else if (cgn_str_eq_nocase(f->name, CGN_STR("authorization")))
			key = auth_bearer(f->value);
		r->identity.two_keys =
			r->identity.two_keys || (first.n > 0 && key.n > 0 && !cgn_str_eq(first, key));
		if (key.n > 0)
			first = key;
	}
	return true;
}

static bool list_has_member(struct cgn_str rest, const char *member)
{
	while (rest.p != NULL) {
		struct cgn_str one = cgn_str_split(&rest, ',');
		if (cgn_str_eq_nocase(cgn_str_trim(cgn_str_split(&one, ';')), cgn_str_of(member)))
			return true;
	}
	return false;
}

/* True if the list of the field |name|, which may be sent in several lines, has |member|; parameters are not read. */
static bool list_has(const struct http_head *h, const char *name, const char *member)
{
	for (size_t i = 0; i < h->n_fields; i++)
		if (cgn_str_eq_nocase(h->fields[i].name, cgn_str_of(name)) &&
			list_has_member(h->fields[i].value, member))
			return true;
	return false;
}

/* Return the field of |names| that the head has several times: readers differ on which counts. NULL: none. */
static const char *twice_find(const struct http_head *h, const char *const *names, size_t n)
{
	for (size_t k = 0; k < n; k++) {
		unsigned seen = 0;
		for (size_t i = 0; i < h->n_fields; i++)
			seen += cgn_str_eq_nocase(h->fields[i].name, cgn_str_of(names[k]));
		if (seen > 1)
			return names[k];
	}
	return NULL;
}

/* Only the port of a peer is asked for these fields: on any other one they are a client's invention. */
static bool arrival_take(struct gw_req *r, const struct http_head *h)
{
	static const char *const once[] = {"X-Cgn-Via", "X-Cgn-Tenant"};
	struct gw_arrival *from = &r->client.from;
	if (from->peer == NULL)
		return true;
	from->is_router = identity_uris_name(http_exchange_peer_uris(r->client.x), "router");
	from->holder = cgn_arena_strz(&r->arena, http_exchange_peer_name(r->client.x));
	from->twice = twice_find(h, once, CGN_COUNT(once));
	if (from->holder == NULL)
		return false;
	if (!field_take(r, h, "x-cgn-via", &from->via) || !field_take(r, h, "x-cgn-tenant", &from->tenant))
		return false;
	from->hops = from->via.n > 0 ? 1 : 0;
	for (size_t i = 0; i < from->via.n; i++)
		from->hops += from->via.p[i] == ',';
	return true;
}

/* llama-server has these names too, and clients without /v1 in their base URL. llama-server's /completions
 * and /embeddings do not count as aliases. */
struct cgn_str gw_alias_resolve(struct cgn_str path)
{
	static const char *const rows[][2] = {{"/chat/completions", "/v1/chat/completions"},
		{"/responses", "/v1/responses"}, {"/models", "/v1/models"}};
	for (size_t i = 0; i < CGN_COUNT(rows); i++)
		if (cgn_str_is(path, rows[i][0]))
			return cgn_str_of(rows[i][1]);
	return path;
}

/* Return |raw| without empty segments of its path: a client whose base URL ends with a slash means the same. NULL: out of
 * memory. */
static struct cgn_str path_take(struct gw_req *r, struct cgn_str raw)
{
	struct cgn_str query = raw, path = cgn_str_split(&query, '?');
	char *to = cgn_arena_get(&r->arena, raw.n + 1);
	size_t n = 0;
	if (to == NULL)
		return (struct cgn_str){NULL, 0};
	for (size_t i = 0; i < path.n; i++)
		if (path.p[i] != '/' || n == 0 || to[n - 1] != '/')
			to[n++] = path.p[i];
	if (n > 1 && to[n - 1] == '/')
		n--;
	struct cgn_str own = gw_alias_resolve((struct cgn_str){to, n});
	return cgn_str_of(cgn_arena_fmt(&r->arena, "%.*s%s%.*s", CGN_STR_ARG(own), query.p != NULL ? "?" : "",
		CGN_STR_ARG(query)));
}

bool gw_head_take(struct gw_req *r, const struct http_head *h)
{
	r->body.length = h->content_length;
	for (size_t i = 0; i < h->n_fields; i++)
		if (cgn_str_is(h->fields[i].name, "content-encoding"))
			r->body.coding = coding_of(r->body.coding, h->fields[i].value);
	r->client.method = cgn_arena_str(&r->arena, h->method);
	r->client.path = path_take(r, h->path);
	r->client.target = r->client.path;
	r->client.peer = cgn_arena_str(&r->arena, http_exchange_peer(r->client.x));
	r->client.wants_html = list_has(h, "accept", "text/html");
	r->client.wants_text = list_has(h, "accept", "text/plain");
	r->client.wants_websocket = list_has(h, "upgrade", "websocket");
	r->client.reads_trailers = list_has(h, "te", "trailers");
	r->client.explain_asked = cgn_str_is(http_head_get(h, "x-cgn-explain"), "1");
	r->client.quote_asked = cgn_str_is(http_head_get(h, "x-cgn-quote"), "1");
	r->client.if_available = list_has(h, "prefer", "if-available"); /* RFC 7240 */
	r->client.stays = cgn_str_is(http_head_get(h, "x-cgn-away"), "off");
	r->client.subset_told = http_head_get(h, SUBSET).p != NULL;
	return r->client.method.p != NULL && r->client.path.p != NULL && r->client.peer.p != NULL &&
		arrival_take(r, h) && id_take(r, http_head_get(h, "x-request-id")) && headers_take(r, h) &&
		field_take(r, h, "x-cgn-node", &r->client.pin) &&
		field_take(r, h, SUBSET, &r->client.subset) && gw_session_take(r, h) && gw_site_take(r, h) &&
		field_take(r, h, "x-cgn-resume", &r->client.resume_asked) &&
		field_take(r, h, "x-cgn-retry", &r->client.retry_asked) &&
		field_take(r, h, "x-cgn-cascade", &r->client.cascade_asked) &&
		field_take(r, h, "x-cgn-priority", &r->client.priority_text) &&
		field_take(r, h, "x-cgn-deadline-ms", &r->client.budget_text) &&
		field_take(r, h, "authorization", &r->identity.authorization) &&
		field_take(r, h, "x-api-key", &r->identity.api_key) && keys_compare(r, h);
}
