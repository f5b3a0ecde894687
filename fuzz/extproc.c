/* SPDX-License-Identifier: Apache-2.0 */
/* extproc: a message of a proxy, with everything that a picker looks at. */
#include "policy/answer/extproc/extproc.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf list = {0};
	struct extproc_message m;
	struct cgn_err err;
	if (cgn_ok(extproc_read((struct cgn_str){(const char *)data, size}, &m, &err))) {
		for (size_t i = 0; i < extproc_fields(&m); i++)
			CGN_MUST(extproc_field_name(&m, i).p != NULL && extproc_field_value(&m, i).p != NULL);
		(void)extproc_subset(&m, &list);
		(void)extproc_served(&m);
	}
	extproc_fini(&m);
	return 0;
}
