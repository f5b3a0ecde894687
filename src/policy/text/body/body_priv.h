/* SPDX-License-Identifier: Apache-2.0 */
/* body, inside. */
#pragma once
#include "policy/text/body/body.h"

/* Read the hints of the member "nvext", which may be missing (raw.p NULL). CGN_INVALID with |*fault|: a hint is not what it
 * has to be. */
CGN_RC body_hints_read(struct json_val nvext, struct body_hints *out, struct body_fault *fault);
