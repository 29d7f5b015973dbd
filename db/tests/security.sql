-- The rules for the database that are not one function's: what the catalog shows of all of them, and what a clash, a note and a log may tell.
-- Who may execute what is 90_grants.sql, whose rows a caller reaches tenancy.sql; docs/faults.md has the rules d1, d2, …
select no_plan();
select test.set_up() \g /dev/null

-- rule d1: edge functions
create view test.edge as
    select p.oid::regprocedure::text as name, p.*, o.rolsuper, o.rolcanlogin, o.rolbypassrls from pg_proc p join pg_roles o on o.oid = p.proowner
    where p.prosecdef and p.pronamespace = 'switchboard'::regnamespace;
select cmp_ok((select count(*) from test.edge), '>', 90::bigint, 'rule d1: there are edge functions to look at');
select is_empty($$ select name from test.edge where rolsuper or rolcanlogin or rolbypassrls $$, 'rule d1: the owner of an edge function is no superuser and may not log in');
select is_empty($$ select name from test.edge where proconfig is null or not ('search_path=switchboard, pg_temp' = any (proconfig)) $$, 'rule d1: they look for names in switchboard, then in pg_temp, and nowhere else');
select is_empty($$ select p.oid::regprocedure from pg_proc p join pg_roles o on o.oid = p.proowner where p.prosecdef and o.rolname ~ '^switchboard_' and p.pronamespace <> 'switchboard'::regnamespace $$,
    'rule d1: and there are none in other schemas');
select is_empty($$ select r.rolname, m.rolname from pg_auth_members a join pg_roles r on r.oid = a.roleid join pg_roles m on m.oid = a.member where r.rolname = 'switchboard_owner' and m.rolname ~ '^switchboard_' $$,
    'rule d1: no role of ours may become the owner');
select is_empty($$ select p.oid::regprocedure, l.lanname from pg_proc p join pg_language l on l.oid = p.prolang where p.pronamespace = 'switchboard'::regnamespace and l.lanname not in ('sql', 'plpgsql') $$,
    'rule d1: nor is there one in a language that can do more');

-- rule d2: nothing for PUBLIC, of what is there and of what is made next
select is_empty($$ select o.what, a.privilege_type from (
        select p.oid::regprocedure::text as what, coalesce(p.proacl, acldefault('f', p.proowner)) as acl from pg_proc p where p.pronamespace in ('switchboard'::regnamespace, 'switchboard_migrations'::regnamespace)
        union all select c.oid::regclass::text, c.relacl from pg_class c where c.relnamespace in ('switchboard'::regnamespace, 'switchboard_migrations'::regnamespace)
        union all select n.nspname, n.nspacl from pg_namespace n where n.nspname like 'switchboard%') o, aclexplode(o.acl) a where a.grantee = 0 $$,
    'rule d2: PUBLIC has no privilege on a function, a table or a schema');
select is_empty($$ select r, n.nspname from unnest('{app,operator,worker,readonly,cron}'::text[]) r, pg_namespace n where n.nspname like 'switchboard%' and has_schema_privilege('switchboard_' || r, n.oid, 'create') $$,
    'rule d2: nobody may put anything into the schemas');
select is_empty($$ select r from unnest('{app,operator,worker,readonly,cron}'::text[]) r where has_schema_privilege('switchboard_' || r, 'switchboard_migrations', 'usage') $$, 'rule d2: or look into that of the migrations');
select is_empty($$ select r, n.nspname from unnest('{app,operator,worker,readonly,cron}'::text[]) r, pg_namespace n where n.nspname = 'cron' and has_schema_privilege('switchboard_' || r, n.oid, 'usage') $$,
    'rule d9: or into that of pg_cron, where it is');

-- rule d6: no text is run as SQL, by whatever name the means goes
select is_empty($$ select p.oid::regprocedure, m[1] from pg_proc p, regexp_matches(regexp_replace(p.prosrc, '--[^\n]*', '', 'g'),
    '\m(execute|query_to_xml|query_to_xmlschema|query_to_xml_and_xmlschema|cursor_to_xml|table_to_xml|schema_to_xml|database_to_xml|ts_stat|ts_rewrite|dblink\w*|crosstab\w*|connectby|lo_import|lo_export|pg_read_\w+|pg_ls_\w+|copy\s+\S+\s+(from|to))\M', 'gi') m
    where p.pronamespace = 'switchboard'::regnamespace $$, 'rule d6: no function has a statement that runs text or reads files');
select set_eq($$ select p.proname::text, m[1] from pg_proc p, regexp_matches(p.prosrc, 'set_config\(''(\w+)''', 'g') m where p.pronamespace = 'switchboard'::regnamespace
    union select p.proname, 'a setting by name' from pg_proc p where p.pronamespace = 'switchboard'::regnamespace and p.prosrc ~ 'set_config\([^'']' $$,
    $$ values ('first_instant', 'TimeZone'), ('on_the_clock', 'TimeZone'), ('admission_window', 'TimeZone'), ('take_doorbells', 'synchronous_commit') $$, 'rule d6: settings are changed by these four, by name');
select is_empty($$ select c.relname, a.attname from pg_class c join pg_attribute a on a.attrelid = c.oid where c.relnamespace = 'switchboard'::regnamespace and c.relkind = 'r' and a.attname ~ '(sql|query|statement|command)$' $$,
    'rule d6: no table has a column of statements');

-- rule d5: a clash tells nothing of whom it is with
select is_empty($$ select i.indexrelid::regclass::text from pg_index i join pg_class t on t.oid = i.indrelid where t.relnamespace = 'switchboard'::regnamespace and t.relkind = 'r' and i.indisunique
        and (select a.attname from pg_attribute a where a.attrelid = t.oid and a.attnum = i.indkey[0]) not in ('endpoint_id', 'human_id')
        and exists (select from pg_attribute a where a.attrelid = t.oid and a.attname in ('endpoint_id', 'human_id', 'name', 'slug', 'digest') and not a.attisdropped)
    except select 'switchboard.' || unnest('{humans_pkey,humans_name_key,endpoints_pkey,endpoints_slug_key,credentials_digest_key,endpoint_logins_login_key,endpoint_webhooks_token_digest_key,endpoint_webhooks_previous_token_digest_key,operator_tokens_pkey,operator_tokens_digest_key,human_sessions_pkey,human_sessions_digest_key,sign_in_links_pkey,sign_in_links_digest_key,human_identities_pkey,admission_policies_pkey,admission_windows_pkey,admission_policy_audit_pkey,tool_register_pkey,sweeps_pkey}'::text[]) $$,
    'rule d5: what is unique over all tenants is listed here, with what a clash says below');
select test.login('tied', 'switchboard_worker') as tied \gset
select switchboard.bind_login(test.b(), :'tied'), switchboard.add_human_identity(test.human('b'), 'https://idp.example', 'bob-s-subject'), test.receiver('token-of-b', 'b'), test.grant_all('a') \g /dev/null
select test.receiver('token-of-a', 'a', 'open') as open \gset
select (switchboard.create_operator_token(test.human('b'), 'b')).token as token_of_b \gset
select switchboard.open_session_by_token(test.digest(:'token_of_b'), test.digest('s')) \g /dev/null
create table test.clashes (n int generated always as identity, what text, call text, kept text);
insert into test.clashes (what, call, kept) values
    ('the name of a human', $$ select switchboard.create_human('Bob') $$, 'Bob'),
    ('a slug', format('select switchboard.vend_endpoint(%L, ''test-b'', ''{q}'')', test.human('a')), 'test-b'),
    ('a login', format('select switchboard.bind_login(%L, %L)', test.a(), :'tied'), :'tied'),
    ('an identity', format('select switchboard.add_human_identity(%L, ''https://idp.example'', ''bob-s-subject'')', test.human('a')), 'bob-s-subject'),
    ('the token in an address', format('select switchboard.create_webhook(%L, ''github'', ''q'', ''\xaa'', test.digest(''token-of-b''))', test.a()), encode(test.digest('token-of-b'), 'hex')),
    ('the token in a new address', format('select switchboard.rotate_webhook(%L, %L, ''\xaa'', test.digest(''token-of-b''))', test.a(), :'open'), encode(test.digest('token-of-b'), 'hex')),
    ('the secret of a session', format('select switchboard.open_session_by_token(test.digest(%L), test.digest(''s''))', :'token_of_b'), encode(test.digest('s'), 'hex'));
select is(e ->> 'sqlstate', 'SB409', 'rule d5: a clash is a conflict: ' || what) from test.clashes, test.error_of(call) e order by n;
select ok(position(kept in e::text) = 0 and position(test.b() in e::text) = 0 and position(test.human('b')::text in e::text) = 0, 'rule d5: and does not say with whom: ' || what) from test.clashes, test.error_of(call) e order by n;
select is((select id::text from switchboard.create_todo(test.a(), 'q', 't', p_idempotency_key => 'k')) <> (select id::text from switchboard.create_todo(test.b(), 'q', 't', p_idempotency_key => 'k')), true, 'rule d5: keys of todos are an endpoint''s own');

-- rule d7: notes on a channel hold ids and names of queues, never a text of anybody
select test.listen(c) from unnest('{todo_ready,switchboard_control,switchboard_outbox}'::text[]) c \g /dev/null
select test.notify_hook('a') \g /dev/null
select id::text as todo from switchboard.create_todo(test.a(), 'q', 'a secret title', '{"secret": "payload"}', 'secret-key', 'secret-kind', 'secret-source') \gset
select (switchboard.claim(test.a(), :'todo', 'secret-owner')).id, (switchboard.release(test.a(), :'todo', 'secret-owner')).id \g /dev/null
select switchboard.rotate_credential(test.a()), switchboard.close_session(test.digest('s')), test.receiver('secret-token'), test.deliver('secret-token', '{"secret": "body"}'),
    switchboard.set_admission_policy(test.a(), 'q', '{"max_in_flight": 0}'), switchboard.clear_admission_policy(test.a(), 'q'), switchboard.revoke_operator_token(test.human('b'), 'b'), switchboard.revoke_endpoint(test.a()) \g /dev/null
select set_eq($$ select distinct regexp_replace(n, '[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}', 'ID') from unnest(test.heard('todo_ready')) n $$, array['ID:q'], 'rule d7: on todo_ready an endpoint and a queue');
select set_eq($$ select distinct regexp_replace(n, '[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}', 'ID') from unnest(test.heard('switchboard_control')) n $$, array['ID', 'sessions'], 'rule d7: on switchboard_control an endpoint, or that sessions ended');
select set_eq($$ select distinct n from unnest(test.heard('switchboard_outbox')) n $$, array[''], 'rule d7: on switchboard_outbox nothing');
select set_eq($$ select distinct m[1] from pg_proc p, regexp_matches(p.prosrc, 'pg_notify\(''(\w+)''', 'g') m where p.pronamespace = 'switchboard'::regnamespace $$, '{todo_ready,switchboard_control,switchboard_outbox}'::text[], 'rule d7: and there are no other channels');

-- rule d8: what a view, a list or an answer shows holds no secret, nor what one is checked with
select is_empty($$ select p.oid::regprocedure, n from pg_proc p, unnest(p.proargnames) with ordinality a(n, i)
    where p.pronamespace = 'switchboard'::regnamespace and p.proargmodes[a.i] in ('t', 'o') and n ~ '(digest|sealed|secret|credential|password)' and p.oid in (select oid from test.edge)
      and p.proname not in ('list_sealed', 'take_deliveries', 'vend_endpoint') $$, 'rule d8: no list names a digest or a secret; sealed ones are for who re-seals and who calls hooks');
select is_empty($$ select c.relname from pg_class c where c.relnamespace = 'switchboard'::regnamespace and c.relkind in ('v', 'm') and pg_get_viewdef(c.oid) ~ '(digest|sealed|secret)' $$, 'rule d8: no view shows one');
select is_empty($$ select c.oid::regclass, a.attname from pg_class c join pg_attribute a on a.attrelid = c.oid where c.relnamespace = 'switchboard'::regnamespace and c.relkind = 'r' and a.attname ~ '(digest|sealed|secret|body)' and a.attnum > 0 and not a.attisdropped
    and (has_table_privilege('switchboard_readonly', c.oid, 'select') or has_column_privilege('switchboard_readonly', c.oid, a.attnum, 'select')) $$, 'rule d8: who only looks may not read them');
select is_empty($$ select c.oid::regclass, a.attname from pg_class c join pg_attribute a on a.attrelid = c.oid where c.relnamespace = 'switchboard'::regnamespace and c.relkind = 'r' and a.attname ~ '(secret|token|credential|password)' and a.attnum > 0 and not a.attisdropped
    and format_type(a.atttypid, null) <> 'bytea' and a.attname not in ('lease_token', 'token_id', 'credential_id') $$, 'rule d8: what is kept of a secret is its digest, or sealed');

select * from finish();
