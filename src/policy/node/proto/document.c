/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/node/proto/document.h"

#include "base/pb/pb_json.h"
#include "cognitora/v1/control.pb-c.h"

const struct proto_document proto_documents[PROTO_DOCUMENTS] = {
#define DOCUMENT(id, path, action, Type, type, select, help) \
	{path, &cognitora__v1__##type##__descriptor, select},
#include "policy/node/proto/documents.def"
#undef DOCUMENT
};

enum parameter_kind { KIND_NUMBER, KIND_WORD, KIND_TEXT, KIND_TIME };

static const struct parameter {
	enum proto_document_id document;
	const char *name;
	enum parameter_kind kind;
	uint64_t least, most;
	const char *words;
} parameters[] = {
#define PARAMETER(document, name, kind, least, most, words, help) \
	{PROTO_DOCUMENT_##document, #name, KIND_##kind, least, most, words},
#define ANSWER(document, when, media, Message, help)
#include "policy/node/proto/parameters.def"
#undef PARAMETER
#undef ANSWER
};

static void known_put(enum proto_document_id id, struct cgn_buf *out)
{
	size_t n = 0;
	for (size_t i = 0; i < CGN_COUNT(parameters); i++)
		if (parameters[i].document == id)
			cgn_buf_fmt(out, "%s%s", n++ == 0 ? " takes " : ", ", parameters[i].name);
	if (n == 0)
		cgn_buf_putz(out, " takes no parameters");
}

static bool word_known(const char *words, struct cgn_str word)
{
	struct cgn_str rest = cgn_str_of(words);
	while (rest.n > 0)
		if (cgn_str_eq(cgn_str_split(&rest, ' '), word))
			return true;
	return false;
}

/* Does the parameter take the value? Else say in |why| which ones it takes. */
static bool value_check(const struct parameter *p, struct cgn_str value, struct cgn_buf *why)
{
	uint64_t number = 0;
	switch (p->kind) {
	case KIND_NUMBER:
		cgn_buf_fmt(why, "%s is a whole number from %llu to %llu", p->name,
			(unsigned long long)p->least, (unsigned long long)p->most);
		return cgn_str_u64(value, &number) && number >= p->least && number <= p->most;
	case KIND_WORD:
		cgn_buf_fmt(why, "%s is one of: %s", p->name, p->words);
		return word_known(p->words, value);
	case KIND_TEXT:
		cgn_buf_fmt(why, "%s has at most %llu bytes", p->name, (unsigned long long)p->most);
		return value.n <= p->most;
	case KIND_TIME:
		break;
	}
	return true;
}

static bool parameter_check(enum proto_document_id id, struct cgn_str name, struct cgn_str value,
	struct cgn_buf *why)
{
	why->n = 0;
	for (size_t i = 0; i < CGN_COUNT(parameters); i++)
		if (parameters[i].document == id && cgn_str_is(name, parameters[i].name))
			return value.n == 0 || value_check(&parameters[i], value, why);
	cgn_buf_fmt(why, "there is no parameter \"%.*s\": %s", name.n < 64 ? (int)name.n : 64, name.p,
		proto_documents[id].path);
	known_put(id, why);
	return false;
}

bool proto_query_check(enum proto_document_id id, struct cgn_str path, struct cgn_buf *why)
{
	(void)cgn_str_split(&path, '?');
	while (path.n > 0) {
		struct cgn_str value = cgn_str_split(&path, '&'), name = cgn_str_split(&value, '=');
		if (name.n > 0 && !parameter_check(id, name, value, why))
			return false;
	}
	return true;
}

void proto_document_put(enum proto_document_id id, const void *message, struct json_out *out)
{
	if (proto_documents[id].select != NULL)
		pb_json_select(out, message, proto_documents[id].select);
	else
		pb_json_put(out, message, PB_JSON_PLAIN);
}
