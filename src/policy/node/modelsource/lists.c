/* SPDX-License-Identifier: Apache-2.0 */
/* lists: the files of a model, as sources list them. */
#include <string.h>

#include "base/codec/codec.h"
#include "base/json/json.h"
#include "policy/node/modelsource/modelsource.h"

bool modelsource_path_is_safe(struct cgn_str path)
{
	if (path.n == 0 || path.n > 1024)
		return false;
	for (size_t i = 0; i < path.n; i++)
		if ((unsigned char)path.p[i] < ' ' || path.p[i] == 127 || path.p[i] == '\\')
			return false;
	do {
		struct cgn_str part = cgn_str_split(&path, '/');
		if (part.n == 0 || part.n > 255 || cgn_str_is(part, ".") || cgn_str_is(part, ".."))
			return false;
	} while (path.p != NULL);
	return true;
}

static bool is_sha256(struct cgn_str hex)
{
	for (size_t i = 0; i < hex.n; i++)
		if (hex_digit(hex.p[i]) < 0)
			return false;
	return hex.n == 64;
}

static bool room_make(struct modelsource_list *l)
{
	if (l->n < l->cap)
		return true;
	size_t cap = l->cap > 0 ? 2 * l->cap : 64;
	struct modelsource_file *more = cgn_arena_get(l->arena, cap * sizeof *more);
	if (more == NULL)
		return false;
	if (l->n > 0)
		memcpy(more, l->files, l->n * sizeof *more);
	l->files = more;
	l->cap = cap;
	return true;
}

CGN_RC modelsource_list_add(struct modelsource_list *l, struct cgn_str path, struct cgn_str where,
	uint64_t size, struct cgn_str sha256, struct cgn_err *err)
{
	if (!modelsource_path_is_safe(path))
		return CGN_FAIL(err, BAD_GATEWAY,
			"the list has a file named \"%.*s\", which could be written outside the folder: nothing is fetched",
			(int)(path.n < 200 ? path.n : 200), path.p);
	if (sha256.n > 0 && !is_sha256(sha256))
		return CGN_FAIL(err, BAD_GATEWAY,
			"the checksum of \"%.*s\" in the list is \"%.*s\", not 64 hexadecimal digits: nothing is fetched",
			(int)(path.n < 200 ? path.n : 200), path.p, (int)(sha256.n < 80 ? sha256.n : 80),
			sha256.p);
	if (l->n == MODELSOURCE_FILES)
		return CGN_FAIL(err, TOO_LARGE, "the list has more than %d files", MODELSOURCE_FILES);
	if (!room_make(l))
		return CGN_FAIL(err, NO_MEMORY, "the list of files: out of memory");
	struct modelsource_file *f = &l->files[l->n];
	*f = (struct modelsource_file){.path = cgn_arena_strz(l->arena, path),
		.where = cgn_arena_strz(l->arena, where),
		.size = size};
	if (f->path == NULL || f->where == NULL)
		return CGN_FAIL(err, NO_MEMORY, "the list of files: out of memory");
	for (size_t i = 0; i < sha256.n; i++)
		f->sha256[i] =
			(char)(sha256.p[i] >= 'A' && sha256.p[i] <= 'F' ? sha256.p[i] + 32 : sha256.p[i]);
	l->n++;
	return CGN_OK;
}

/* ---- the hub ---- */

static CGN_RC hub_entry(struct json_val v, struct modelsource_list *l, struct cgn_err *err)
{
	struct json_val lfs;
	struct cgn_str path = json_get_str(v, "path", l->arena), sha = {NULL, 0};
	uint64_t size = json_get_u64(v, "size", UINT64_MAX);
	if (!cgn_str_is(json_get_str(v, "type", l->arena), "file"))
		return CGN_OK; /* A folder; its files are listed too. */
	if (json_get(v, "lfs", &lfs) && lfs.type == JSON_OBJECT) {
		sha = json_get_str(lfs, "oid", l->arena);
		if (sha.n == 0)
			return CGN_FAIL(err, BAD_GATEWAY,
				"the list has no checksum (lfs.oid) of \"%.*s\": nothing is fetched",
				(int)(path.n < 200 ? path.n : 200), path.p);
		size = json_get_u64(lfs, "size", size);
	}
	return modelsource_list_add(l, path, path, size, sha, err);
}

CGN_RC modelsource_hub_read(struct cgn_str json, struct modelsource_list *l, struct cgn_err *err)
{
	struct json_val all, one;
	struct cgn_err why;
	if (!cgn_ok(json_parse(json, &all, NULL, &why)))
		return CGN_FAIL(err, BAD_GATEWAY, "the hub's list of files is not JSON: %s", why.msg);
	if (all.type != JSON_ARRAY)
		return CGN_FAIL(err, BAD_GATEWAY, "the hub's list of files is not a list");
	struct json_iter it = json_iter_of(all);
	while (json_next_elem(&it, &one))
		CGN_TRY(hub_entry(one, l, err));
	return CGN_OK;
}

/* ---- a registry ---- */

static bool digest_is_ok(struct cgn_str d)
{
	return cgn_str_starts(d, "sha256:") && is_sha256((struct cgn_str){d.p + 7, d.n - 7});
}

static CGN_RC oci_layer(struct json_val v, struct modelsource_list *l, struct cgn_err *err)
{
	struct json_val notes;
	struct cgn_str digest = json_get_str(v, "digest", l->arena), title = {NULL, 0};
	char plain[80];
	if (!digest_is_ok(digest))
		return CGN_FAIL(err, BAD_GATEWAY,
			"a layer's digest is \"%.*s\", not sha256: and 64 hexadecimal digits",
			(int)(digest.n < 80 ? digest.n : 80), digest.p);
	if (json_get(v, "annotations", &notes) && notes.type == JSON_OBJECT)
		title = json_get_str(notes, "org.opencontainers.image.title", l->arena);
	(void)snprintf(plain, sizeof plain, "sha256-%.*s", (int)(digest.n - 7), digest.p + 7);
	if (title.n == 0)
		title = cgn_str_of(plain);
	return modelsource_list_add(l, title, digest, json_get_u64(v, "size", UINT64_MAX),
		(struct cgn_str){digest.p + 7, digest.n - 7}, err);
}

CGN_RC modelsource_oci_read(struct cgn_str json, struct modelsource_list *l, char next[128],
	struct cgn_err *err)
{
	struct json_val all, list, one;
	struct cgn_err why;
	next[0] = '\0';
	if (!cgn_ok(json_parse(json, &all, NULL, &why)))
		return CGN_FAIL(err, BAD_GATEWAY, "the registry's manifest is not JSON: %s", why.msg);
	if (json_get(all, "manifests", &list) && list.type == JSON_ARRAY) {
		struct json_iter it = json_iter_of(list);
		if (!json_next_elem(&it, &one) || !digest_is_ok(json_get_str(one, "digest", l->arena)))
			return CGN_FAIL(err, BAD_GATEWAY, "the registry's index names no manifest");
		(void)cgn_str_copyz(next, 128, json_get_str(one, "digest", l->arena));
		return CGN_OK;
	}
	if (!json_get(all, "layers", &list) || list.type != JSON_ARRAY)
		return CGN_FAIL(err, BAD_GATEWAY, "the registry's manifest has no layers");
	struct json_iter it = json_iter_of(list);
	while (json_next_elem(&it, &one))
		CGN_TRY(oci_layer(one, l, err));
	return CGN_OK;
}

/* ---- a bucket ---- */

/* Return the text between the next <tag> and </tag>, and move |xml| behind it; p is NULL when there is none. */
static struct cgn_str element_next(struct cgn_str *xml, const char *tag)
{
	char open[32], close[32];
	(void)snprintf(open, sizeof open, "<%s>", tag);
	(void)snprintf(close, sizeof close, "</%s>", tag);
	const char *begin = xml->n > 0 ? memmem(xml->p, xml->n, open, strlen(open)) : NULL;
	if (begin == NULL)
		return (struct cgn_str){NULL, 0};
	begin += strlen(open);
	const char *end = memmem(begin, (size_t)(xml->p + xml->n - begin), close, strlen(close));
	if (end == NULL)
		return (struct cgn_str){NULL, 0};
	const char *rest = end + strlen(close);
	*xml = (struct cgn_str){rest, (size_t)(xml->p + xml->n - rest)};
	return (struct cgn_str){begin, (size_t)(end - begin)};
}

/* Replace the five entities of XML and numeric ones below 128; p is NULL when there is no memory or another one. */
static struct cgn_str entities_read(struct cgn_str s, struct cgn_arena *a)
{
	static const struct {
		const char *name;
		char c;
	} known[] = {{"amp", '&'}, {"lt", '<'}, {"gt", '>'}, {"quot", '"'}, {"apos", '\''}};
	char *out = cgn_arena_get(a, s.n + 1);
	size_t n = 0;
	while (out != NULL && s.n > 0) {
		char c = *s.p;
		s = (struct cgn_str){s.p + 1, s.n - 1};
		if (c != '&') {
			out[n++] = c;
			continue;
		}
		struct cgn_str name = cgn_str_split(&s, ';');
		uint64_t code = 0;
		for (size_t i = 0; i < CGN_COUNT(known); i++)
			if (cgn_str_is(name, known[i].name))
				code = (uint64_t)(unsigned char)known[i].c;
		if (code == 0 && cgn_str_starts(name, "#"))
			(void)cgn_str_u64((struct cgn_str){name.p + 1, name.n - 1}, &code);
		if (code == 0 || code > 127 || s.p == NULL)
			return (struct cgn_str){NULL, 0};
		out[n++] = (char)code;
	}
	return (struct cgn_str){out, n};
}

static CGN_RC s3_key(struct cgn_str entry, const char *prefix, struct modelsource_list *l,
	struct cgn_err *err)
{
	struct cgn_str rest = entry, raw = element_next(&rest, "Key"), key = entities_read(raw, l->arena),
		       path = key;
	uint64_t size = UINT64_MAX;
	rest = entry;
	(void)cgn_str_u64(element_next(&rest, "Size"), &size);
	if (raw.p == NULL || key.p == NULL)
		return CGN_FAIL(err, BAD_GATEWAY, "the bucket's list has an entry whose key can't be read");
	size_t lead = strlen(prefix);
	if (lead > 0 && cgn_str_starts(key, prefix) && key.n > lead && key.p[lead] == '/')
		path = (struct cgn_str){key.p + lead + 1, key.n - lead - 1};
	else if (lead > 0 && !cgn_str_is(key, prefix))
		return CGN_OK; /* "models/a-large" is not below "models/a". */
	if (path.n == 0 || path.p[path.n - 1] == '/')
		return CGN_OK;       /* The mark of a folder. */
	if (cgn_str_is(key, prefix)) /* The address names one object. */
		for (size_t i = key.n; i > 0; i--)
			if (key.p[i - 1] == '/') {
				path = (struct cgn_str){key.p + i, key.n - i};
				break;
			}
	return modelsource_list_add(l, path, key, size, (struct cgn_str){NULL, 0}, err);
}

CGN_RC modelsource_s3_read(struct cgn_str xml, const char *prefix, struct modelsource_list *l,
	char token[1100], struct cgn_err *err)
{
	struct cgn_str rest = xml, entry;
	token[0] = '\0';
	if (xml.n == 0 || memmem(xml.p, xml.n, "<ListBucketResult", 17) == NULL)
		return CGN_FAIL(err, BAD_GATEWAY, "the bucket's answer is not a list of objects");
	while ((entry = element_next(&rest, "Contents")).p != NULL)
		CGN_TRY(s3_key(entry, prefix, l, err));
	rest = xml;
	entry = entities_read(element_next(&rest, "NextContinuationToken"), l->arena);
	if (entry.n > 0 && !cgn_str_copyz(token, 1100, entry))
		return CGN_FAIL(err, BAD_GATEWAY,
			"the bucket's token for the next page has more than 1,099 bytes");
	return CGN_OK;
}
