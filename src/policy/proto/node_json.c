/* SPDX-License-Identifier: Apache-2.0 */
/* node_json: a Node as proto3 JSON, the value of its key in etcd. */
#include "base/json/json.h"
#include "policy/proto/proto_priv.h"

#define NODE_JSON_MAX ((size_t)1024 * 1024)

/* ---- writing ---- */

static void put_text(struct json_out *o, const char *key, const char *z)
{
	if (z[0] == '\0')
		return;
	json_key(o, key);
	json_put_z(o, z);
}

static void put_true(struct json_out *o, const char *key, bool v)
{
	if (!v)
		return;
	json_key(o, key);
	json_put_bool(o, true);
}

static void put_u32(struct json_out *o, const char *key, uint32_t v)
{
	if (v == 0)
		return;
	json_key(o, key);
	json_put_u64(o, v);
}

/* 64-bit integers are strings in proto3 JSON: JavaScript would round them. */
static void put_u64(struct json_out *o, const char *key, uint64_t v)
{
	char digits[24];
	if (v == 0)
		return;
	(void)snprintf(digits, sizeof digits, "%llu", (unsigned long long)v);
	json_key(o, key);
	json_put_z(o, digits);
}

static void put_engine(struct json_out *o, const Cognitora__V1__Engine *e)
{
	json_open(o, '{');
	put_text(o, "name", e->name);
	put_text(o, "kind", e->kind);
	if (e->n_models > 0) {
		json_key(o, "models");
		json_open(o, '[');
		for (size_t i = 0; i < e->n_models; i++)
			json_put_z(o, e->models[i]);
		json_close(o, ']');
	}
	put_true(o, "ready", e->ready);
	put_u32(o, "slots", e->slots);
	put_u64(o, "kvBlocksTotal", e->kv_blocks_total);
	put_u32(o, "kvBlockTokens", e->kv_block_tokens);
	put_text(o, "residency", e->residency);
	put_text(o, "resume", e->resume);
	json_close(o, '}');
}

static void put_role(struct json_out *o, Cognitora__V1__Role role)
{
	const ProtobufCEnumValue *v =
		protobuf_c_enum_descriptor_get_value(&cognitora__v1__role__descriptor, (int)role);
	if (role == COGNITORA__V1__ROLE__ROLE_BOTH)
		return;
	json_key(o, "role");
	if (v != NULL)
		json_put_z(o, v->name);
	else
		json_put_i64(o, (int64_t)role);
}

static void put_store(struct json_out *o, const Cognitora__V1__KvStore *kv)
{
	if (kv == NULL)
		return;
	json_key(o, "kv");
	json_open(o, '{');
	put_text(o, "quicAddress", kv->quic_address);
	put_text(o, "rack", kv->rack);
	put_text(o, "region", kv->region);
	json_close(o, '}');
}

void proto_node_to_json(const Cognitora__V1__Node *n, struct cgn_buf *out)
{
	struct json_out o = json_out_to(out);
	json_open(&o, '{');
	put_text(&o, "id", n->id);
	put_text(&o, "address", n->address);
	put_role(&o, n->role);
	if (n->n_engines > 0) {
		json_key(&o, "engines");
		json_open(&o, '[');
		for (size_t i = 0; i < n->n_engines; i++)
			put_engine(&o, n->engines[i]);
		json_close(&o, ']');
	}
	put_true(&o, "draining", n->draining);
	put_text(&o, "version", n->version);
	put_u64(&o, "startedUnixMs", n->started_unix_ms);
	put_store(&o, n->kv);
	json_close(&o, '}');
}

/* ---- reading: a Node in an arena, then one deep copy. Errors are sticky in the reader. ---- */

struct reader {
	struct cgn_arena arena;
	const char *bad; /* the first member that was wrong */
};

static void fail(struct reader *r, const char *name)
{
	r->bad = r->bad != NULL ? r->bad : name;
}

static void *get(struct reader *r, size_t n, const char *name)
{
	void *p = cgn_arena_zero(&r->arena, n);
	if (p == NULL)
		fail(r, name);
	return p;
}

/* Either spelling of a member; null counts as absent, as proto3 JSON says. */
static bool member(struct json_val object, const char *name, const char *original, struct json_val *out)
{
	return (json_get(object, name, out) || (original != NULL && json_get(object, original, out))) &&
		out->type != JSON_NULL;
}

/* protobuf-c's strings are C strings: one with a NUL inside would change its meaning. */
static char *text_of(struct reader *r, struct json_val v, const char *name)
{
	if (v.type != JSON_STRING) {
		fail(r, name);
		return NULL;
	}
	struct cgn_str s = json_str(v, &r->arena);
	if (s.p == NULL || (s.n > 0 && memchr(s.p, '\0', s.n) != NULL)) {
		fail(r, name);
		return NULL;
	}
	char *z = cgn_arena_strz(&r->arena, s);
	if (z == NULL)
		fail(r, name);
	return z;
}

static void get_text_as(struct reader *r, struct json_val o, const char *name, const char *original,
	char **out)
{
	struct json_val v;
	if (!member(o, name, original, &v))
		return;
	char *z = text_of(r, v, name);
	if (z != NULL)
		*out = z;
}

static void get_text(struct reader *r, struct json_val o, const char *name, char **out)
{
	get_text_as(r, o, name, NULL, out);
}

static bool get_true(struct reader *r, struct json_val o, const char *name)
{
	struct json_val v;
	if (!member(o, name, NULL, &v))
		return false;
	if (v.type != JSON_BOOL)
		fail(r, name);
	return json_bool(v, false);
}

static uint64_t get_u64(struct reader *r, struct json_val o, const char *name, const char *original,
	uint64_t max)
{
	struct json_val v;
	uint64_t n = 0;
	if (!member(o, name, original, &v))
		return 0;
	bool ok = v.type == JSON_STRING ? cgn_str_u64(json_str(v, &r->arena), &n)
					: v.type == JSON_NUMBER && json_u64(v, &n);
	if (!ok || n > max)
		fail(r, name);
	return n;
}

static Cognitora__V1__Role get_role(struct reader *r, struct json_val o)
{
	struct json_val v;
	uint64_t n = 0;
	if (!member(o, "role", NULL, &v))
		return COGNITORA__V1__ROLE__ROLE_BOTH;
	if (v.type == JSON_NUMBER && json_u64(v, &n) && n <= INT32_MAX)
		return (Cognitora__V1__Role)n;
	char *z = text_of(r, v, "role");
	const ProtobufCEnumValue *e = z != NULL
		? protobuf_c_enum_descriptor_get_value_by_name(&cognitora__v1__role__descriptor, z)
		: NULL;
	if (e == NULL)
		fail(r, "role");
	return e != NULL ? (Cognitora__V1__Role)e->value : COGNITORA__V1__ROLE__ROLE_BOTH;
}

/* How many elements the array |name| has; 0 when it is absent, no array, or over |max| (both are errors). */
static size_t get_array(struct reader *r, struct json_val o, const char *name, size_t max,
	struct json_iter *it)
{
	struct json_val v, elem;
	size_t n = 0;
	if (!member(o, name, NULL, &v))
		return 0;
	if (v.type != JSON_ARRAY) {
		fail(r, name);
		return 0;
	}
	*it = json_iter_of(v);
	for (struct json_iter count = *it; json_next_elem(&count, &elem);)
		n++;
	if (n > max)
		fail(r, name);
	return n <= max ? n : 0;
}

static void get_models(struct reader *r, struct json_val o, Cognitora__V1__Engine *e)
{
	struct json_iter it;
	struct json_val elem;
	size_t n = get_array(r, o, "models", PROTO_MAX_MODELS, &it);
	char **models = n > 0 ? get(r, n * sizeof *models, "models") : NULL;
	for (size_t i = 0; models != NULL && i < n && json_next_elem(&it, &elem); i++)
		models[i] = text_of(r, elem, "models");
	e->models = models;
	e->n_models = models != NULL ? n : 0;
}

static Cognitora__V1__Engine *get_engine(struct reader *r, struct json_val o)
{
	Cognitora__V1__Engine *e = get(r, sizeof *e, "engines");
	if (e == NULL)
		return NULL;
	cognitora__v1__engine__init(e);
	if (o.type != JSON_OBJECT)
		fail(r, "engines");
	get_text(r, o, "name", &e->name);
	get_text(r, o, "kind", &e->kind);
	get_models(r, o, e);
	e->ready = get_true(r, o, "ready");
	e->slots = (uint32_t)get_u64(r, o, "slots", NULL, UINT32_MAX);
	e->kv_blocks_total = get_u64(r, o, "kvBlocksTotal", "kv_blocks_total", UINT64_MAX);
	e->kv_block_tokens = (uint32_t)get_u64(r, o, "kvBlockTokens", "kv_block_tokens", UINT32_MAX);
	get_text(r, o, "residency", &e->residency);
	get_text(r, o, "resume", &e->resume);
	return e;
}

static void get_engines(struct reader *r, struct json_val o, Cognitora__V1__Node *n)
{
	struct json_iter it;
	struct json_val elem;
	size_t count = get_array(r, o, "engines", PROTO_MAX_ENGINES, &it);
	Cognitora__V1__Engine **engines = count > 0 ? get(r, count * sizeof *engines, "engines") : NULL;
	for (size_t i = 0; engines != NULL && i < count && json_next_elem(&it, &elem); i++)
		engines[i] = get_engine(r, elem);
	n->engines = engines;
	n->n_engines = engines != NULL ? count : 0;
}

static void get_store(struct reader *r, struct json_val o, Cognitora__V1__Node *n)
{
	struct json_val v;
	if (!member(o, "kv", NULL, &v))
		return;
	Cognitora__V1__KvStore *kv = get(r, sizeof *kv, "kv");
	if (kv == NULL)
		return;
	if (v.type != JSON_OBJECT)
		fail(r, "kv");
	cognitora__v1__kv_store__init(kv);
	get_text_as(r, v, "quicAddress", "quic_address", &kv->quic_address);
	get_text(r, v, "rack", &kv->rack);
	get_text(r, v, "region", &kv->region);
	n->kv = kv;
}

static void get_node(struct reader *r, struct json_val o, Cognitora__V1__Node *n)
{
	cognitora__v1__node__init(n);
	get_text(r, o, "id", &n->id);
	get_text(r, o, "address", &n->address);
	n->role = get_role(r, o);
	get_engines(r, o, n);
	n->draining = get_true(r, o, "draining");
	get_text(r, o, "version", &n->version);
	n->started_unix_ms = get_u64(r, o, "startedUnixMs", "started_unix_ms", UINT64_MAX);
	get_store(r, o, n);
}

static CGN_RC read_node(struct reader *r, struct cgn_str json, Cognitora__V1__Node **out, struct cgn_err *err)
{
	struct json_val root;
	Cognitora__V1__Node n;
	CGN_TRY(json_parse(json, &root, NULL, err));
	if (root.type != JSON_OBJECT)
		return CGN_FAIL(err, INVALID, "Node: the JSON is no object");
	get_node(r, root, &n);
	if (r->bad != NULL)
		return CGN_FAIL(err, INVALID,
			"Node: member \"%s\" is of the wrong type, too large or unknown", r->bad);
	CGN_TRY(proto_node_check(&n, err));
	*out = proto_node_dup(&n);
	return *out != NULL ? CGN_OK : CGN_FAIL(err, NO_MEMORY, "Node: no memory for a copy");
}

CGN_RC proto_node_from_json(struct cgn_str json, Cognitora__V1__Node **out, struct cgn_err *err)
{
	struct reader r = {.bad = NULL};
	if (json.n > NODE_JSON_MAX)
		return CGN_FAIL(err, INVALID, "Node: %zu bytes of JSON, at most %zu are read", json.n,
			NODE_JSON_MAX);
	/* Unescaped copies and pointers: a small multiple of the text. */
	cgn_arena_init(&r.arena, 16 * json.n + (size_t)64 * 1024);
	cgn_rc rc = read_node(&r, json, out, err);
	cgn_arena_fini(&r.arena);
	return rc;
}
