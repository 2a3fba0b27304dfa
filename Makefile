# pg_mip: make && make install (PG_CONFIG selects the server); see ./run for everything else

MODULE_big = pg_mip
OBJS = $(patsubst %.c,%.o,$(sort $(wildcard src/*.c src/*/*.c)))

EXTENSION = pg_mip
DATA = sql/pg_mip--0.1.sql

# the regression and isolation suites need a server with
# shared_preload_libraries = 'pg_mip' (./run test starts one)
REGRESS = $(patsubst test/sql/%.sql,%,$(sort $(wildcard test/sql/*.sql)))
REGRESS_OPTS = --inputdir=test --load-extension=pg_mip
ISOLATION = $(patsubst test/specs/%.spec,%,$(sort $(wildcard test/specs/*.spec)))
ISOLATION_OPTS = --inputdir=test --load-extension=pg_mip
TAP_TESTS = $(if $(wildcard test/t/*.pl),1)

PG_CPPFLAGS += -I$(srcdir)/src
PG_CFLAGS += -Wall -Wextra -Wno-unused-parameter -Wno-sign-compare -Wno-missing-field-initializers $(if $(WERROR),-Werror)

PG_CONFIG ?= pg_config
PGXS := $(shell $(PG_CONFIG) --pgxs)
include $(PGXS)

# no --enable-depend in distributions' builds
$(OBJS): $(wildcard src/*/*.h)
