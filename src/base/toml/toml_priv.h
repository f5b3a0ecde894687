/* SPDX-License-Identifier: Apache-2.0 */
/* toml, inside: what is checked before toml++ sees the text. */
#pragma once
#include "base/toml/toml.h"

#define TOML_MAX_DOTS 64 /* in one dotted key */

/* No key of |text| has more than TOML_MAX_DOTS dots? If not, where the one too many is. toml++ 3.3 makes a
 * table per dot without a limit and frees them recursively: a line of dots would end in a stack overflow. */
bool toml_dots_are_few(struct cgn_str text, struct toml_place *where);
