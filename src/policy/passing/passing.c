/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/passing/passing.h"

#include <string.h>

/* ---- paths ---- */

bool passing_path_matches(struct cgn_str path, const char *pattern)
{
	const size_t lead = strcspn(pattern, "*"); /* Most patterns are plain, and most paths differ here. */
	if (path.n < lead || memcmp(path.p, pattern, lead) != 0)
		return false;
	if (pattern[lead] == '\0')
		return path.n == lead;
	struct cgn_str p = path, w = cgn_str_of(pattern);
	while (p.p != NULL && w.p != NULL) {
		if (cgn_str_is(w, "**"))
			return p.n > 0;
		struct cgn_str segment = cgn_str_split(&p, '/'), wanted = cgn_str_split(&w, '/');
		if (cgn_str_is(wanted, "*") ? segment.n == 0 : !cgn_str_eq(segment, wanted))
			return false;
	}
	return p.p == NULL && w.p == NULL;
}

/* Paths by which vLLM, SGLang, TensorRT-LLM and llama.cpp are administrated, or tell of all their clients. */
static const char *const admin_paths[] = {"/v1/load_lora_adapter", "/v1/unload_lora_adapter",
	"/load_lora_adapter", "/unload_lora_adapter", "/lora-adapters", "/slots", "/slots/0", "/props",
	"/metrics", "/models/load", "/models/unload", "/sleep", "/wake_up", "/pause", "/resume",
	"/pause_generation", "/continue_generation", "/abort_request", "/reset_prefix_cache",
	"/reset_mm_cache", "/reset_encoder_cache", "/flush_cache", "/clear_hicache_storage_backend",
	"/attach_hicache_storage_backend", "/collective_rpc", "/scale_elastic_ep", "/start_profile",
	"/stop_profile", "/set_internal_state", "/get_server_info", "/server_info", "/shutdown",
	"/update_weights", "/update_weights_from_disk", "/update_weights_from_tensor",
	"/update_weights_from_distributed", "/init_weights_update_group", "/init_weight_transfer_engine",
	"/start_weight_update", "/finish_weight_update", "/release_memory_occupation",
	"/resume_memory_occupation", "/api/pull", "/api/push", "/api/create", "/api/copy", "/api/delete"};

static const char *admin_path_covered(const char *pattern)
{
	for (size_t i = 0; i < CGN_COUNT(admin_paths); i++)
		if (passing_path_matches(cgn_str_of(admin_paths[i]), pattern))
			return admin_paths[i];
	return NULL;
}

static bool segment_is_ok(struct cgn_str s, bool last)
{
	if (cgn_str_is(s, "*") || (last && cgn_str_is(s, "**")))
		return true;
	for (size_t i = 0; i < s.n; i++)
		if (s.p[i] <= ' ' || s.p[i] > '~' || strchr("*?#%\"\\", s.p[i]) != NULL)
			return false;
	return s.n > 0 && !cgn_str_is(s, ".") && !cgn_str_is(s, "..");
}

static bool path_is_ok(struct cgn_str path)
{
	if (path.n < 2 || path.p[0] != '/')
		return false;
	path = (struct cgn_str){path.p + 1, path.n - 1};
	while (path.p != NULL) {
		struct cgn_str segment = cgn_str_split(&path, '/');
		if (!segment_is_ok(segment, path.p == NULL))
			return false;
	}
	return true;
}

/* ---- routes ---- */

static const char *method_find(struct cgn_str word)
{
	static const char *const methods[] = {"GET", "POST", "PUT", "PATCH", "DELETE"};
	for (size_t i = 0; i < CGN_COUNT(methods); i++)
		if (cgn_str_is(word, methods[i]))
			return methods[i];
	return NULL;
}

/* Read a scope from the beginning of |rest|, if there is one. */
static enum passing_scope scope_take(struct cgn_str *rest)
{
	static const char *const names[] =
		{[PASSING_CHAT] = "chat", [PASSING_EMBED] = "embed", [PASSING_ADMIN] = "admin"};
	struct cgn_str behind = *rest, word = cgn_str_split(&behind, ' ');
	for (size_t i = 0; i < CGN_COUNT(names); i++)
		if (behind.p != NULL && cgn_str_is(word, names[i])) {
			*rest = behind;
			return (enum passing_scope)i;
		}
	return PASSING_CHAT;
}

CGN_RC passing_route_read(const char *text, struct passing_route *out, struct cgn_err *err)
{
	struct cgn_str rest = cgn_str_of(text);
	const char *method = method_find(cgn_str_split(&rest, ' '));
	if (method == NULL || rest.p == NULL)
		return CGN_FAIL(err, INVALID,
			"\"%.100s\" must be METHOD /path or METHOD SCOPE /path, with a method of GET, POST, PUT, PATCH and DELETE, and a scope of chat, embed and admin",
			text);
	enum passing_scope scope = scope_take(&rest);
	if (!path_is_ok(rest))
		return CGN_FAIL(err, INVALID,
			"\"%.100s\" must end with a path of visible characters without ?, # and %%, such as /v1/videos/*; * stands for one segment, ** at the end for all that are left",
			text);
	const char *admin = admin_path_covered(rest.p);
	if (admin != NULL && scope != PASSING_ADMIN)
		return CGN_FAIL(err, INVALID,
			"\"%.100s\" covers %s, by which engines are administrated or tell of all their clients: write \"%s admin %.100s\" for keys with the scope admin, or a narrower path",
			text, admin, method, rest.p);
	*out = (struct passing_route){method, rest.p, scope};
	return CGN_OK;
}

/* ---- header fields ---- */

struct name_row {
	const char *name; /* A "*" at the end: all names with that beginning. */
	const char *why;
};

static bool name_matches(struct cgn_str name, const char *row)
{
	size_t n = strlen(row);
	if (row[n - 1] != '*')
		return cgn_str_is(name, row);
	return name.n >= n - 1 && memcmp(name.p, row, n - 1) == 0;
}

#define OF_CONNECTION "belongs to one connection"
#define OF_BODY       "describes a body that the router may change"
#define CREDENTIAL    "may carry a credential of the client, and engines get the operator's"
#define OWN           "is set by the router"

static const char *name_barred(struct cgn_str name)
{
	static const struct name_row rows[] = {{"connection", OF_CONNECTION}, {"keep-alive", OF_CONNECTION},
		{"transfer-encoding", OF_CONNECTION}, {"te", OF_CONNECTION}, {"trailer", OF_CONNECTION},
		{"upgrade", OF_CONNECTION}, {"proxy-*", OF_CONNECTION}, {"expect", OF_CONNECTION},
		{"host", OF_CONNECTION}, {"http2-settings", OF_CONNECTION},
		{"sec-websocket-*", OF_CONNECTION}, {"content-length", OF_BODY},
		{"content-encoding", OF_BODY}, {"content-type", OF_BODY}, {"accept-encoding", OF_BODY},
		{"content-md5", OF_BODY}, {"digest", OF_BODY}, {"content-digest", OF_BODY},
		{"range", OF_BODY}, {"authorization", CREDENTIAL}, {"cookie", CREDENTIAL},
		{"x-api-key", CREDENTIAL}, {"api-key", CREDENTIAL}, {"x-goog-api-key", CREDENTIAL},
		{"x-amz-security-token", CREDENTIAL}, {"x-forwarded-access-token", CREDENTIAL},
		{"openai-organization", CREDENTIAL}, {"openai-project", CREDENTIAL}, {"x-cgn-*", OWN},
		{"x-request-id", OWN}, {"traceparent", OWN}, {"tracestate", OWN}};
	for (size_t i = 0; i < CGN_COUNT(rows); i++)
		if (name_matches(name, rows[i].name))
			return rows[i].why;
	return NULL;
}

static bool name_is_ok(struct cgn_str s)
{
	for (size_t i = 0; i < s.n; i++) {
		char c = s.p[i];
		bool alnum = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
		if (!alnum && (c == '\0' || strchr("!#$%&'*+-.^_`|~", c) == NULL))
			return false;
	}
	return s.n > 0;
}

CGN_RC passing_header_check(const char *name, struct cgn_err *err)
{
	if (!name_is_ok(cgn_str_of(name)))
		return CGN_FAIL(err, INVALID,
			"\"%.100s\" must be the name of a header field, in lower case, such as x-team", name);
	const char *why = name_barred(cgn_str_of(name));
	if (why != NULL)
		return CGN_FAIL(err, INVALID, "\"%.100s\" cannot pass to engines: it %s", name, why);
	return CGN_OK;
}
