/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/fleet/inferencepool/inferencepool.h"

#include <stdio.h>
#include <string.h>

#include "base/codec/codec.h"

static bool member_of(struct json_val object, const char *key, const char *inner, struct json_val *out)
{
	struct json_val v;
	return json_get(object, key, &v) && json_get(v, inner, out);
}

/* Return the string as it stands in the document; names, labels and addresses need no escapes. p == NULL: it is none. */
static struct cgn_str plain_of(struct json_val v)
{
	struct cgn_str s = {NULL, 0};
	if (v.type == JSON_STRING && memchr(v.raw.p, '\\', v.raw.n) == NULL)
		s = (struct cgn_str){v.raw.p + 1, v.raw.n - 2};
	return s;
}

/* ---- the pool ---- */

static bool is_label(struct cgn_str s, bool key)
{
	static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
	if (s.p == NULL || s.n > (key ? 317 : 63) || (key && s.n == 0))
		return false;
	for (size_t i = 0; i < s.n; i++)
		if (memchr(letters, s.p[i], sizeof letters - 1) == NULL && !(key && s.p[i] == '/'))
			return false;
	return true;
}

static CGN_RC selector_read(struct json_val labels, struct cgn_buf *out, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.limit = INFERENCEPOOL_SELECTOR};
	struct json_iter it = json_iter_of(labels);
	struct cgn_str key;
	struct json_val value;
	size_t n = 0;
	for (; json_next_member(&it, &key, &value); n++) {
		struct cgn_str word = plain_of(value);
		if (n == INFERENCEPOOL_LABELS || !is_label(key, true) || !is_label(word, false))
			return CGN_FAIL(err, INVALID,
				"its selector has more than %d labels, or one that is none",
				INFERENCEPOOL_LABELS);
		cgn_buf_fmt(&text, "%s%.*s=%.*s", n > 0 ? "," : "", CGN_STR_ARG(key), CGN_STR_ARG(word));
	}
	if (n == 0)
		return CGN_FAIL(err, INVALID, "its selector has no label: it would select every pod");
	out->n = 0;
	cgn_buf_putz(out, "labelSelector=");
	percent_put(out, cgn_buf_view(&text));
	return text.bad || out->bad ? CGN_FAIL(err, NO_MEMORY, "no memory for its selector") : CGN_OK;
}

static CGN_RC ports_read(struct json_val list, struct inferencepool *out, struct cgn_err *err)
{
	struct json_iter it = json_iter_of(list);
	struct json_val entry, number;
	uint64_t port = 0;
	out->n_ports = 0;
	while (json_next_elem(&it, &entry)) {
		bool good = json_get(entry, "number", &number) && json_u64(number, &port) && port > 0 &&
			port <= 65535;
		if (!good || out->n_ports == INFERENCEPOOL_PORTS)
			return CGN_FAIL(err, INVALID,
				"its targetPorts have more than %d ports, or one that is none",
				INFERENCEPOOL_PORTS);
		out->ports[out->n_ports++] = (uint16_t)port;
	}
	return out->n_ports > 0 ? CGN_OK : CGN_FAIL(err, INVALID, "it has no targetPorts");
}

CGN_RC inferencepool_read(struct json_val object, struct inferencepool *out, struct cgn_err *err)
{
	struct json_val spec, labels, ports;
	if (!json_get(object, "spec", &spec))
		return CGN_FAIL(err, INVALID, "it has no spec");
	if (!member_of(spec, "selector", "matchLabels", &labels) || labels.type != JSON_OBJECT)
		return CGN_FAIL(err, INVALID, "its selector has no matchLabels");
	if (!json_get(spec, "targetPorts", &ports) || ports.type != JSON_ARRAY)
		return CGN_FAIL(err, INVALID, "it has no targetPorts");
	CGN_TRY(ports_read(ports, out, err));
	return selector_read(labels, &out->selector, err);
}

/* ---- pods ---- */

static bool is_address(struct cgn_str s)
{
	for (size_t i = 0; i < s.n; i++)
		if (memchr("0123456789abcdefABCDEF.:", s.p[i], 24) == NULL)
			return false;
	return s.n > 0;
}

static void address_read(struct json_val status, struct inferencepool_pod *out)
{
	struct json_val ip;
	if (!json_get(status, "podIP", &ip))
		return;
	struct cgn_str s = plain_of(ip);
	if (s.p == NULL || s.n + 3 > sizeof out->address || !is_address(s))
		return;
	bool six = memchr(s.p, ':', s.n) != NULL;
	(void)snprintf(out->address, sizeof out->address, "%s%.*s%s", six ? "[" : "", CGN_STR_ARG(s),
		six ? "]" : "");
}

static bool is_ready(struct json_val status)
{
	struct json_val list, entry, type, value;
	bool ready = false;
	if (!json_get(status, "conditions", &list) || list.type != JSON_ARRAY)
		return false;
	for (struct json_iter it = json_iter_of(list); json_next_elem(&it, &entry);)
		if (json_get(entry, "type", &type) && cgn_str_is(plain_of(type), "Ready"))
			ready = json_get(entry, "status", &value) && cgn_str_is(plain_of(value), "True");
	return ready;
}

static bool is_name(struct cgn_str s)
{
	for (size_t i = 0; i < s.n; i++)
		if (memchr("abcdefghijklmnopqrstuvwxyz0123456789-.", s.p[i], 38) == NULL)
			return false;
	return s.p != NULL && s.n > 0 && s.n < INFERENCEPOOL_NAME;
}

bool inferencepool_pod_read(struct json_val object, struct inferencepool_pod *out)
{
	struct json_val v, status;
	*out = (struct inferencepool_pod){.ready = false};
	if (!member_of(object, "metadata", "name", &v) || !is_name(plain_of(v)) ||
		!cgn_str_copyz(out->name, sizeof out->name, plain_of(v)))
		return false;
	out->ending = member_of(object, "metadata", "deletionTimestamp", &v) && v.type == JSON_STRING;
	if (json_get(object, "status", &status)) {
		address_read(status, out);
		out->ready = is_ready(status);
	}
	return true;
}
