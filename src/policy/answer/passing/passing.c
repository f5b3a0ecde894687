/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/answer/passing/passing.h"

#include <string.h>

#include "base/codec/codec.h"

/* ---- paths ---- */

static bool segments_match(struct cgn_str p, struct cgn_str w, bool (*eq)(struct cgn_str, struct cgn_str))
{
	while (p.p != NULL && w.p != NULL) {
		if (cgn_str_is(w, "**"))
			return p.n > 0;
		struct cgn_str segment = cgn_str_split(&p, '/'), wanted = cgn_str_split(&w, '/');
		if (cgn_str_is(wanted, "*") ? segment.n == 0 : !eq(segment, wanted))
			return false;
	}
	return p.p == NULL && w.p == NULL;
}

bool passing_path_matches(struct cgn_str path, const char *pattern)
{
	const size_t lead = strcspn(pattern, "*"); /* Most patterns are plain, and most paths differ here. */
	if (path.n < lead || memcmp(path.p, pattern, lead) != 0)
		return false;
	if (pattern[lead] == '\0')
		return path.n == lead;
	return segments_match(path, cgn_str_of(pattern), cgn_str_eq);
}

static bool ends_with(struct cgn_str s, const char *end)
{
	size_t n = strlen(end);
	return s.n >= n && memcmp(s.p + s.n - n, end, n) == 0;
}

bool passing_pattern_covers(const char *pattern, struct cgn_str other)
{
	/* "*" matches one segment, and "**" as a text is one segment too. */
	return passing_path_matches(other, pattern) &&
		(!ends_with(other, "/**") || ends_with(cgn_str_of(pattern), "/**"));
}

/* ---- paths with two meanings ---- */

static size_t slashes_count(struct cgn_str s)
{
	size_t n = 0;
	for (size_t i = 0; i < s.n; i++)
		n += s.p[i] == '/';
	return n;
}

/* Some servers take what stands behind a ";" for parameters of the segment. */
static const char *segments_judge(struct cgn_str path)
{
	while (path.p != NULL) {
		struct cgn_str segment = cgn_str_split(&path, '/'), name = cgn_str_split(&segment, ';');
		if (cgn_str_is(name, ".") || cgn_str_is(name, ".."))
			return "a segment . or ..";
	}
	return NULL;
}

/* |slashes|: as many as the path may have. */
static const char *text_judge(struct cgn_str path, size_t slashes)
{
	for (size_t i = 0; i < path.n; i++) {
		unsigned char c = (unsigned char)path.p[i];
		if (c < ' ' || c == 0x7f)
			return "a control character";
		if (c == '\\')
			return "a backslash";
	}
	return slashes_count(path) > slashes ? "a slash in a segment" : segments_judge(path);
}

const char *passing_path_trick(struct cgn_str path, bool slash_is_fine, char *room)
{
	const size_t slashes = slash_is_fine ? path.n : slashes_count(path);
	const char *why = text_judge(path, slashes);
	for (int i = 0; why == NULL && i <= PASSING_CODED; i++) {
		size_t n = percent_get(room, path);
		if (n == path.n)
			return NULL; /* Each code is longer than its byte: nothing was coded. */
		path = (struct cgn_str){room, n};
		why = text_judge(path, slashes);
	}
	return why != NULL ? why : "a character that is percent-coded again and again";
}

/* ---- administration ---- */

/* Paths by which vLLM, SGLang, TensorRT-LLM and llama.cpp are administrated, or show data of all their
 * clients. */
static const char *const admin_paths[] = {"/v1/load_lora_adapter", "/v1/unload_lora_adapter",
	"/load_lora_adapter", "/unload_lora_adapter", "/lora-adapters", "/slots", "/slots/0", "/slots/*",
	"/props", "/metrics", "/models/load", "/models/unload", "/sleep", "/wake_up", "/pause", "/resume",
	"/pause_generation", "/continue_generation", "/abort_request", "/reset_prefix_cache",
	"/reset_mm_cache", "/reset_encoder_cache", "/flush_cache", "/clear_hicache_storage_backend",
	"/attach_hicache_storage_backend", "/collective_rpc", "/scale_elastic_ep", "/start_profile",
	"/stop_profile", "/set_internal_state", "/get_server_info", "/server_info", "/shutdown",
	"/update_weights", "/update_weights_from_disk", "/update_weights_from_tensor",
	"/update_weights_from_distributed", "/init_weights_update_group", "/init_weight_transfer_engine",
	"/start_weight_update", "/finish_weight_update", "/release_memory_occupation",
	"/resume_memory_occupation", "/configure_logging", "/freeze_gc", "/open_session", "/close_session",
	"/abort_requests", "/fault_tolerance/apply", "/fault_tolerance/*", "/load_lora_adapter_from_tensors",
	"/hicache/storage-backend", "/update_weights_from_ipc", "/update_weight_version",
	"/get_weights_by_name", "/destroy_weights_update_group",
	"/init_weights_send_group_for_remote_instance", "/send_weights_to_remote_instance",
	"/weights_checker", "/slow_down", "/start_expert_distribution_record",
	"/stop_expert_distribution_record", "/dump_expert_distribution_record", "/api/pull", "/api/push",
	"/api/create", "/api/copy", "/api/delete"};

/* A proxy before the engine may ignore the case. */
static const char *admin_path_covered(const char *pattern)
{
	const struct cgn_str p = cgn_str_of(pattern);
	for (size_t i = 0; i < CGN_COUNT(admin_paths); i++) {
		struct cgn_str admin = cgn_str_of(admin_paths[i]);
		if (segments_match(admin, p, cgn_str_eq_nocase) ||
			segments_match(p, admin, cgn_str_eq_nocase))
			return admin_paths[i];
	}
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

/* Some servers take "_" for "-". */
static bool name_begins(struct cgn_str name, struct cgn_str with)
{
	for (size_t i = 0; i < name.n && i < with.n; i++)
		if ((name.p[i] == '_' ? '-' : name.p[i]) != with.p[i])
			return false;
	return name.n >= with.n;
}

static bool name_matches(struct cgn_str name, const char *row)
{
	size_t n = strlen(row);
	if (row[n - 1] == '*')
		return name_begins(name, (struct cgn_str){row, n - 1});
	return name.n == n && name_begins(name, cgn_str_of(row));
}

/* "tokens" and "keys" are counts and lists more often than credentials. */
static bool word_is_credential(struct cgn_str word)
{
	static const char *const ends[] = {"auth", "authn", "authz", "token", "secret", "key", "password",
		"passphrase", "pwd", "cert", "jwt", "oidc", "saml", "bearer"};
	static const char *const begins[] = {"authenti", "authoriz", "authoris", "oauth", "cookie",
		"credential", "passw", "secret"};
	for (size_t i = 0; i < CGN_COUNT(ends); i++)
		if (ends_with(word, ends[i]))
			return true;
	for (size_t i = 0; i < CGN_COUNT(begins); i++)
		if (cgn_str_starts(word, begins[i]))
			return true;
	return false;
}

/* A word is a run of letters and digits. */
static struct cgn_str word_take(struct cgn_str *rest)
{
	size_t n = 0;
	while (n < rest->n &&
		((rest->p[n] >= 'a' && rest->p[n] <= 'z') || (rest->p[n] >= '0' && rest->p[n] <= '9')))
		n++;
	struct cgn_str word = {rest->p, n};
	size_t behind = n < rest->n ? n + 1 : n;
	*rest = (struct cgn_str){rest->p + behind, rest->n - behind};
	return word;
}

static bool name_is_credential(struct cgn_str name)
{
	if (cgn_str_is(name, "idempotency-key")) /* Engines get it anyway. */
		return false;
	while (name.n > 0)
		if (word_is_credential(word_take(&name)))
			return true;
	return false;
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
		{"range", OF_BODY}, {"openai-organization", CREDENTIAL}, {"openai-project", CREDENTIAL},
		{"x-cgn-*", OWN}, {"x-request-id", OWN}, {"traceparent", OWN}, {"tracestate", OWN}};
	for (size_t i = 0; i < CGN_COUNT(rows); i++)
		if (name_matches(name, rows[i].name))
			return rows[i].why;
	return name_is_credential(name) ? CREDENTIAL : NULL;
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
