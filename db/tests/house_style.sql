-- The conventions of this schema, read from the catalog: each query lists what breaks one.
select no_plan();

create view test.functions as
    select p.oid::regprocedure::text as name, p.* from pg_proc p where p.pronamespace = 'switchboard'::regnamespace;
create view test.relations as
    select c.* from pg_class c where c.relnamespace = 'switchboard'::regnamespace and c.relkind in ('r', 'p', 'v', 'm');

select cmp_ok((select count(*) from test.functions), '>', 30::bigint, 'there are functions to look at');
select cmp_ok((select count(*) from test.relations), '>', 5::bigint, 'and tables');

-- functions
select is_empty($$ select name from test.functions where coalesce(obj_description(oid, 'pg_proc'), '') = '' $$, 'every function has a comment');
select is_empty($$ select name from test.functions where proname not in ('clock', 'as_uuid', 'scope', 'claim_terms', 'finish', 'tell_created')
    and not exists (select from unnest(proconfig) c where c ~ '^search_path=(.*, )?pg_temp$') $$,
    'every function pins search_path, with pg_temp last');
-- Pinning costs 2 us a call, 10 % of a claim and its end: the five that every call runs through are the owner's alone and name every
-- object with its schema instead.
select is_empty($$ select name from test.functions where proname in ('clock', 'as_uuid', 'scope', 'claim_terms', 'finish', 'tell_created') and (prosecdef
    or prosrc ~ '(from|join|into|update|perform) (todos|settings|endpoints|endpoint_logins|queue_marks|todo_attempts|notify_hooks|notify_deliveries|queue_stall_nudges|refuse|check|wake|post|note)') $$,
    'the five that do not pin it qualify what they name, and are no entry points');
select is_empty($$ select f.name from test.functions f, aclexplode(coalesce(f.proacl, acldefault('f', f.proowner))) a where a.grantee = 0 and a.privilege_type = 'EXECUTE' $$,
    'no function is executable by PUBLIC');
select is_empty($$ select f.name, n from test.functions f, unnest(f.proargnames) with ordinality as a(n, i)
    where coalesce(f.proargmodes[a.i], 'i') in ('i', 'b', 'v') and n !~ '^p_[a-z0-9_]+$' $$, 'every argument is called p_…');
select is_empty($$ select name from test.functions where pronargs > 0 and coalesce(array_length(proargnames, 1), 0) < pronargs $$, 'every argument has a name');
select is_empty($$ select proname from test.functions group by proname having count(*) > 1 $$, 'no function is overloaded');
select is_empty($$ select name from test.functions where proowner <> 'switchboard_owner'::regrole $$, 'every function belongs to switchboard_owner');
select is_empty($$ select name from test.functions where prokind not in ('f', 'a') $$, 'no procedures: a caller keeps its transaction');
select is_empty($$ select name from test.functions where prosrc ~* '\mexecute\M\s+(format|v_|p_|'')' $$, 'no function runs text as SQL');
select is_empty($$ select name from test.functions where prosrc ~* '\mpg_(try_)?advisory_' $$, 'no function takes an advisory lock: any login could hold it');
-- run_sweep measures its budget by the wall clock; granted() names now() as a function to grant
select is_empty($$ select name from test.functions where proname not in ('now', 'clock', 'run_sweep', 'granted')
    and regexp_replace(prosrc, 'switchboard\.now\(\)', '', 'g') ~* '((clock|statement|transaction)_timestamp|current_timestamp|localtimestamp|\mnow\(\))' $$, 'every clock reading is clock(), that is switchboard.now()');
select is_empty($$ select name from test.functions where proname <> 'refuse' and prosrc ~* '\mraise\s+(exception|sqlstate)' $$, 'errors are raised by refuse()');

-- tables
select is_empty($$ select relname from test.relations where coalesce(obj_description(oid, 'pg_class'), '') = '' $$, 'every table has a comment');
select is_empty($$ select r.relname, a.attname from test.relations r join pg_attribute a on a.attrelid = r.oid
    where a.attnum > 0 and not a.attisdropped and coalesce(col_description(r.oid, a.attnum), '') = '' $$, 'every column has a comment');
select is_empty($$ select r.relname, a.attname from test.relations r join pg_attribute a on a.attrelid = r.oid
    where a.attnum > 0 and not a.attisdropped and a.atttypid in ('timestamp'::regtype, 'time'::regtype, 'timetz'::regtype, 'date'::regtype) $$, 'every time is a timestamptz');
select is_empty($$ select r.relname, a.attname from test.relations r join pg_attribute a on a.attrelid = r.oid
    where a.attnum > 0 and not a.attisdropped and a.atttypid in ('varchar'::regtype, 'bpchar'::regtype, 'json'::regtype, 'money'::regtype) $$, 'texts are text, JSON is jsonb');
select is_empty($$ select r.relname from test.relations r where r.relkind = 'r' and not exists (select from pg_constraint c where c.conrelid = r.oid and c.contype = 'p') $$,
    'every table has a primary key');
select is_empty($$ select c.conrelid::regclass, c.conname from pg_constraint c join test.relations r on r.oid = c.conrelid where c.contype = 'f'
    and not exists (select from pg_index i where i.indrelid = c.conrelid and i.indisvalid
        and (i.indkey::int2[])[0:cardinality(c.conkey) - 1] @> c.conkey and (i.indpred is null)) $$, 'every foreign key has an index');
select is_empty($$ select r.relname from test.relations r where r.relowner <> 'switchboard_owner'::regrole $$, 'every table belongs to switchboard_owner');

-- tenancy: rows of mixed tenancy cannot exist
select is_empty($$ select r.relname from test.relations r join pg_attribute e on e.attrelid = r.oid and e.attname = 'endpoint_id' join pg_constraint c on c.conrelid = r.oid and c.contype = 'p'
    where r.relkind = 'r' and c.conkey[1] <> e.attnum and r.relname not in ('admission_policies', 'admission_windows', 'admission_policy_audit') $$,
    'the primary key of every tenant table starts with endpoint_id');
select is_empty($$ select c.conrelid::regclass, c.conname from pg_constraint c
    where c.contype = 'f' and c.connamespace = 'switchboard'::regnamespace
      and exists (select from pg_attribute a where a.attrelid = c.confrelid and a.attname = 'endpoint_id')
      and not exists (select from pg_attribute a where a.attrelid = c.conrelid and a.attname = 'endpoint_id' and a.attnum = any (c.conkey)) $$,
    'foreign keys between tenant tables are composite');
select col_not_null('switchboard', 'todos', 'endpoint_id', 'no todo without an endpoint');

-- types and privileges
select is_empty($$ select t.typname from pg_type t left join pg_class c on c.oid = t.typrelid where t.typnamespace = 'switchboard'::regnamespace and t.typtype in ('c', 'e', 'd')
    and coalesce(c.relkind, 'c') = 'c' and coalesce(obj_description(t.oid, 'pg_type'), '') = '' $$, 'every type has a comment');
select is_empty($$ select r.relname, a.grantee::regrole, a.privilege_type from test.relations r, aclexplode(r.relacl) a
    where a.grantee not in ('switchboard_owner'::regrole, 'switchboard_readonly'::regrole) $$, 'no role but the owner and readonly has a privilege on a table');
select is_empty($$ select r.relname, a.privilege_type from test.relations r, aclexplode(r.relacl) a where a.grantee = 'switchboard_readonly'::regrole and a.privilege_type <> 'SELECT' $$,
    'and readonly may only look');
select is_empty($$ select rolname from pg_roles where rolname ~ '^switchboard_' and (rolsuper or rolcreaterole or rolcreatedb or rolbypassrls) $$, 'no role of ours has an attribute of power');
select is_empty($$ select rolname from pg_roles where rolname in ('switchboard_owner', 'switchboard_app', 'switchboard_operator', 'switchboard_worker', 'switchboard_readonly') and rolcanlogin $$,
    'roles are groups without login');
select is_empty($$ select p.name from test.functions p, aclexplode(p.proacl) a where a.is_grantable and a.grantee <> p.proowner $$, 'no grant may be passed on');

select * from finish();
