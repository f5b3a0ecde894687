/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz answerhome: an id that is found in the beginning of an answer lies in it, is within its bounds, and its home is
 * found again. */
#include <stdlib.h>
#include <string.h>

#include "base/core/err.h"
#include "policy/route/routing/answerhome.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct prompttail_table *t = NULL;
	char *copy = malloc(n + 1); /* A block of its own: reading behind it is seen. */
	CGN_MUST(copy != NULL && cgn_ok(prompttail_new(4096, &t, NULL)));
	if (n > 0)
		memcpy(copy, data, n);
	struct cgn_str id = answerhome_id((struct cgn_str){copy, n});
	if (id.p != NULL) {
		CGN_MUST(id.p > copy && id.p + id.n < copy + n && id.n >= 4 && id.n <= ANSWERHOME_ID_MAX);
		answerhome_put(t, (struct answerhome_of){id, CGN_STR("m")}, 3, 9);
		struct answerhome h = answerhome_get(t, (struct answerhome_of){id, CGN_STR("m")});
		CGN_MUST(answerhome_is(&h, 3, 9));
	}
	prompttail_free(&t);
	free(copy);
	return 0;
}
