/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz pem: no text breaks the reading of certificates, keys and bundles, as Secrets have them. */
#include <stdlib.h>

#include "io/net/pki/bundle.h"
#include "io/net/pki/request.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check_pair(struct cgn_str text)
{
	struct pki_info in;
	if (pki_is_pair(text, text))
		CGN_MUST(cgn_ok(pki_inspect(text, &in, NULL)));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	char *copy = cgn_str_dupz((struct cgn_str){(const char *)data, n});
	struct cgn_buf bundle = {.n = 0}, again = {.n = 0};
	struct cgn_str text = {copy, n};
	CGN_MUST(copy != NULL);
	check_pair(text);
	CGN_MUST(pki_first(text).n <= n);
	CGN_MUST(cgn_ok(pki_bundle_add(&bundle, text, 0, NULL)));
	/* A bundle adds nothing to itself. */
	CGN_MUST(cgn_ok(pki_bundle_add(&again, cgn_buf_view(&bundle), 0, NULL)));
	CGN_MUST(cgn_str_eq(cgn_buf_view(&bundle), cgn_buf_view(&again)));
	CGN_MUST(cgn_ok(pki_bundle_add(&again, cgn_buf_view(&bundle), 0, NULL)));
	CGN_MUST(again.n == bundle.n);
	(void)pki_bundle_signed(cgn_buf_view(&bundle), text);
	cgn_buf_fini(&bundle);
	cgn_buf_fini(&again);
	free(copy);
	return 0;
}
