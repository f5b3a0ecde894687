/* SPDX-License-Identifier: Apache-2.0 */
/* name: the header or member that names a session. */
#include <string.h>

#include "base/json/json.h"
#include "base/mix/mix.h"
#include "policy/route/routing/routing.h"
#include "policy/route/session/session.h"

static const struct {
	const char *name, *header;
} sources[SESSION_SOURCES] = {
#define SESSION_SOURCE(id, name, header) {name, header},
#include "policy/route/session/sources.def"
#undef SESSION_SOURCE
};

const char *session_source_text(enum session_source from)
{
	CGN_MUST(from < SESSION_SOURCES);
	return sources[from].name;
}

const char *session_source_header(enum session_source from)
{
	CGN_MUST(from < SESSION_SOURCES);
	return sources[from].header;
}

bool session_id_is_ok(struct cgn_str id)
{
	for (size_t i = 0; i < id.n; i++)
		if (id.p[i] <= ' ' || id.p[i] > '~')
			return false;
	return id.n > 0 && id.n <= SESSION_ID_MAX;
}

static size_t id_copy(struct cgn_str id, char *room)
{
	if (!session_id_is_ok(id))
		return 0;
	memcpy(room, id.p, id.n);
	return id.n;
}

static size_t id_of_object(struct cgn_str user, char *room)
{
	struct json_val object, id;
	char text[SESSION_ID_MAX];
	struct cgn_buf plain = cgn_buf_over(text, sizeof text);
	if (!cgn_ok(json_parse(user, &object, NULL, NULL)) || !json_get(object, "session_id", &id) ||
		id.type != JSON_STRING)
		return 0;
	json_str_to(id, &plain);
	return plain.bad ? 0 : id_copy(cgn_buf_view(&plain), room);
}

size_t session_id_of_user(struct cgn_str user, char *room)
{
	static const char mark[] = "_session_";
	const size_t n = sizeof mark - 1;
	if (user.n > 0 && user.p[0] == '{')
		return id_of_object(user, room);
	for (size_t at = user.n; at-- > 0;)
		if (user.n - at > n && memcmp(user.p + at, mark, n) == 0)
			return id_copy((struct cgn_str){user.p + at + n, user.n - at - n}, room);
	return 0;
}

uint64_t session_route_hash(const struct session_name *name)
{
	uint64_t id = route_hash(name->id.p, name->id.n);
	if (cgn_str_is(name->tenant, "-"))
		return id;
	return mix_murmur(id ^ route_hash(name->tenant.p, name->tenant.n)) | 1;
}
