/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz toolcall: the names are the same for any cuts of the answer, and within the bounds. The first byte chooses the
 * form and the cuts; the bytes are read as metadata.user_id too. */
#include "policy/text/toolcall/toolcall.h"
#include "base/core/err.h"
#include "policy/route/session/session.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void answer_read(struct toolcall *t, bool events, struct cgn_str text, size_t step)
{
	toolcall_init(t, events);
	for (size_t at = 0; at < text.n; at += step)
		toolcall_feed(t, (struct cgn_str){text.p + at, text.n - at < step ? text.n - at : step});
	toolcall_end(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	static struct toolcall whole, cut;
	char room[SESSION_ID_MAX];
	if (n == 0)
		return 0;
	struct cgn_str text = {(const char *)data + 1, n - 1};
	answer_read(&whole, data[0] & 1, text, text.n + 1);
	answer_read(&cut, data[0] & 1, text, (size_t)1 + data[0] / 2);
	CGN_MUST(whole.n == cut.n && whole.n <= TOOLCALL_NAMES);
	for (size_t i = 0; i < whole.n; i++) {
		CGN_MUST(whole.names[i].n > 0 && whole.names[i].n <= TOOLCALL_NAME_MAX);
		CGN_MUST(cgn_str_eq(whole.names[i], cut.names[i]));
	}
	toolcall_fini(&whole);
	toolcall_fini(&cut);
	size_t id = session_id_of_user(text, room);
	CGN_MUST(id == 0 || session_id_is_ok((struct cgn_str){room, id}));
	return 0;
}
