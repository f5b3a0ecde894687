/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz invite: no text breaks the reading of a token, of the document of invites, or of a certificate
 * request; a text that is read is written the same. */
#include <stdlib.h>

#include "io/net/pki/request.h"
#include "policy/who/invite/invite.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

#define NOW ((int64_t)1700000000)

static void check_token(struct cgn_str text)
{
	struct invite_token t, same;
	struct cgn_buf again = {0};
	if (!cgn_ok(invite_token_read(text, &t, NULL)))
		return;
	invite_token_put(&t, &again);
	CGN_MUST(!again.bad && cgn_ok(invite_token_read(cgn_buf_view(&again), &same, NULL)));
	CGN_MUST(cgn_str_eq(t.address, same.address) && cgn_str_eq(t.node, same.node));
	cgn_buf_fini(&again);
}

/* The document with |text|'s valid lines, as invite_add writes them, can be read, and one of its invites claimed. */
static void check_document(struct cgn_str text)
{
	struct invite added = {.id = "00000000000000a1", .role = "agent", .ends = NOW + 60, .days = 1}, found;
	struct cgn_buf doc = {0}, claimed = {0};
	const struct invite_request rq = {CGN_STR("00000000000000a1"), CGN_STR("agent"), CGN_STR("n"),
		added.secret, added.key};
	bool again;
	if (cgn_ok(invite_add(text, &added, NOW, &doc, NULL))) {
		CGN_MUST(cgn_ok(invite_judge(cgn_buf_view(&doc), &rq, NOW, &found, &again, NULL)) && !again);
		invite_claim(cgn_buf_view(&doc), &rq, NOW, &claimed);
		CGN_MUST(cgn_ok(invite_judge(cgn_buf_view(&claimed), &rq, NOW, &found, &again, NULL)) &&
			again);
		CGN_MUST(claimed.n > doc.n);
	}
	cgn_buf_fini(&doc);
	cgn_buf_fini(&claimed);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct pki_request_info info;
	char *text = cgn_str_dupz((struct cgn_str){(const char *)data, n}); /* A block of its own size. */
	CGN_MUST(text != NULL);
	check_token((struct cgn_str){text, n});
	check_document((struct cgn_str){text, n});
	if (cgn_ok(pki_request_read((struct cgn_str){text, n}, &info, NULL)))
		CGN_MUST(info.uri[0] != '\0');
	free(text);
	return 0;
}
