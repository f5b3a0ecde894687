/* SPDX-License-Identifier: Apache-2.0 */
/* hook: a program that is asked before and after: it allows, refuses, is slow, lies, goes. */
#include "hook.h"

#include <string.h>

bool hook_calm;
struct hook_book *(*hook_find)(struct cgn_str question);

static bool json_reply(struct fake_talk *t, int status, const char *text)
{
	return fake_reply(t, status, "application/json", cgn_str_of(text));
}

enum hook_way {
	HOOK_ALLOW,
	HOOK_EMPTY,
	HOOK_REFUSE,
	HOOK_403,
	HOOK_SLOW,
	HOOK_GARBAGE,
	HOOK_500,
	HOOK_CUT,
	HOOK_HALF,
	HOOK_YES,
	HOOK_WAYS
};

static bool hook_answer(struct fake_talk *t, enum hook_way way)
{
	static const char half[] = "HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n{\"allow\":";
	switch (way) {
	case HOOK_ALLOW:
		return json_reply(t, 200, "{\"allow\":true}");
	case HOOK_EMPTY:
		return fake_reply(t, 200, "application/json", (struct cgn_str){0});
	case HOOK_REFUSE:
		return json_reply(t, 200,
			"{\"allow\":false,\"message\":\"not this\",\"code\":\"no_such_thing\"}");
	case HOOK_403:
		return fake_reply(t, 403, "text/plain", CGN_STR("go away"));
	case HOOK_GARBAGE:
		return fake_reply(t, 200, "application/json", CGN_STR("\x01<allow>"));
	case HOOK_500:
		return json_reply(t, 500, "{\"allow\":true}");
	case HOOK_HALF:
		(void)fake_send(t, half, sizeof half - 1);
		return false;
	case HOOK_YES:
		return json_reply(t, 200, "{\"allow\":\"yes\"}");
	case HOOK_SLOW:
		world_sleep(3 * WORLD_SEC + world_draw(20 * WORLD_SEC));
		return json_reply(t, 200, "{\"allow\":true}");
	case HOOK_CUT:
	case HOOK_WAYS:
		break;
	}
	return false;
}

/* Note in the book of a request how the hook answered. */
static void book_note(struct hook_book *b, bool after, bool allows, bool refuses)
{
	unsigned *const counts[2][3] = {{&b->allowed, &b->refused, &b->failed},
		{&b->after_allowed, &b->after_refused, &b->after_failed}};
	(*counts[after][allows ? 0 : refuses ? 1 : 2])++;
}

static bool hook_serve(struct fake_talk *t, const struct fake_question *q, void *user)
{
	(void)user;
	bool after = memmem(q->body.p, q->body.n, "\"hook\":\"after\"", 14) != NULL;
	struct hook_book *b = hook_find(q->body);
	enum hook_way way =
		hook_calm || world_draw(3) > 0 ? HOOK_ALLOW : (enum hook_way)world_draw(HOOK_WAYS);
	world_tell("hook: %s, way %d, %.*s", after ? "after" : "before", (int)way,
		(int)(q->body.n < 90 ? q->body.n : 90), q->body.p);
	if (b == NULL && !after)
		world_fail("the hook before is asked about an unknown request: %.*s", (int)q->body.n,
			q->body.p);
	if (b != NULL)
		book_note(b, after, way == HOOK_ALLOW || way == HOOK_EMPTY,
			way == HOOK_REFUSE || way == HOOK_403);
	world_sleep(world_draw(20 * WORLD_MS));
	return hook_answer(t, way);
}

struct fake hook_fake = {.name = "hook", .port = 8600, .serve = hook_serve};
