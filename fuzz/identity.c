/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz identity: no text breaks the reading of a certificate's URI names or of a role; a text that is read is
 * written the same. */
#include <stdlib.h>

#include "policy/who/identity/identity.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check_uri(struct cgn_str text)
{
	struct identity_uri u;
	struct cgn_buf again = {0};
	if (!identity_uri_parse(text, &u))
		return;
	identity_uri_put(&u, &again);
	CGN_MUST(!again.bad && cgn_str_eq(cgn_buf_view(&again), text));
	cgn_buf_fini(&again);
}

static void check_holder(struct cgn_str text)
{
	struct identity_roles *t;
	struct principal p = {.roles = UINT64_MAX};
	if (!cgn_ok(identity_roles_new(NULL, &t, NULL)))
		return;
	identity_of_certificate(t, "c", CGN_STR("name"), text, &p);
	CGN_MUST(p.kind == IDENTITY_CERT && p.roles >> IDENTITY_BUILTIN_ROLES == 0);
	/* A certificate announces no other node than its own. */
	CGN_MUST(!authorize(t, &p, ACTION_NODE_ANNOUNCE, CGN_STR("name/")));
	struct cgn_buf why = {0};
	identity_refusal(t, &p, ACTION_NODE_CORDON, text, &why);
	cgn_buf_fini(&why);
	identity_roles_unref(&t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	char *text = cgn_str_dupz((struct cgn_str){(const char *)data, n});
	CGN_MUST(text != NULL);
	check_uri((struct cgn_str){text, n});
	check_holder((struct cgn_str){text, n});
	(void)identity_is_local((struct cgn_str){text, n});
	free(text);
	return 0;
}
