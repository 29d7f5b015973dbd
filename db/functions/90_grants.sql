-- Grants: who may execute what. All of them, here and nowhere else.
--
-- Nobody but the owner has privileges on tables. Functions are executable by the roles named below and
-- by no one else; a helper that is not named is the owner's alone. Roles are cluster-wide and grants
-- are compared first, so that replaying this file changes only what differs.
--   app       the gateway: authenticates, forwards, receives deliveries, ticks
--   operator  people: everything of every endpoint
--   worker    database logins bound to one endpoint: its verbs
--   readonly  looks, changes nothing
--   cron      the scheduler: ticks

create or replace function switchboard.granted()
returns table (signature text, roles text[])
language sql immutable set search_path = switchboard, pg_temp
as $$
    values
    -- callers of every kind
    ('now()',                                                             '{app,operator,worker,readonly,cron}'::text[]),
    ('error_table()',                                                     '{app,operator,worker,readonly}'),
    ('create_todo(text,text,text,jsonb,text,text,text,text,integer)',     '{app,operator,worker}'),
    ('create_todos(text,jsonb)',                                          '{app,operator,worker}'),
    ('list_todos(text,text,text,integer)',                                '{app,operator,worker}'),
    ('get_todo(text,text)',                                               '{app,operator,worker}'),
    ('todo_history(text,text)',                                           '{app,operator,worker}'),
    ('queue_counts(text)',                                                '{app,operator,worker}'),
    ('pending_doorbell_todos(text,text[])',                               '{app,operator,worker}'),
    ('claim(text,text,text,integer)',                                     '{app,operator,worker}'),
    ('claim_next(text,text,text[],integer)',                              '{app,operator,worker}'),
    ('claim_batch(text,text,integer,text[],integer)',                     '{app,operator,worker}'),
    ('heartbeat(text,text,text,integer,text)',                            '{app,operator,worker}'),
    ('complete(text,text,text,jsonb,text)',                               '{app,operator,worker}'),
    ('complete_batch(text,text,text[],text[])',                           '{app,operator,worker}'),
    ('fail(text,text,text,jsonb,text)',                                   '{app,operator,worker}'),
    ('release(text,text,text,text)',                                      '{app,operator,worker}'),
    ('retry(text,text)',                                                  '{app,operator,worker}'),
    ('deferred_queues(text,text[],text)',                                 '{app,operator,worker}'),
    ('admission_status(text,text)',                                       '{app,operator,worker}'),
    ('set_admission_policy(text,text,jsonb,uuid)',                        '{app,operator,worker}'),
    ('clear_admission_policy(text,text,uuid)',                            '{app,operator,worker}'),
    ('admission_window(text,text,text,text,timestamptz)',                 '{app,operator,worker,readonly}'),
    ('read_event(text,text,integer,integer)',                             '{app,operator,worker}'),
    ('list_webhooks(text)',                                               '{app,operator,worker}'),
    ('list_notify_hooks(text)',                                           '{app,operator,worker}'),
    ('delete_notify_hook(text,text)',                                     '{operator,worker}'),
    ('delete_webhook(text,text)',                                         '{operator,worker}'),
    ('add_webhook_route(text,text,text)',                                 '{operator,worker}'),
    ('list_webhook_routes(text,text)',                                    '{app,operator,worker}'),
    ('remove_webhook_route(text,text,text)',                              '{operator,worker}'),
    -- the gateway
    ('authenticate(text,bytea)',                                          '{app}'),
    ('tools_for(text,bytea)',                                             '{app}'),
    ('call_tool(text,bytea,text,jsonb,jsonb)',                            '{app}'),
    ('authenticate_operator(bytea)',                                      '{app}'),
    ('call_api(bytea,text,jsonb)',                                        '{app}'),
    ('call_board(bytea,text,jsonb)',                                      '{app}'),
    ('board_changes()',                                                   '{app}'),
    ('open_session_by_token(bytea,bytea)',                                '{app}'),
    ('open_session_by_link(bytea,bytea)',                                 '{app}'),
    ('open_session_by_identity(text,text,bytea)',                         '{app}'),
    ('close_session(bytea)',                                              '{app}'),
    ('metrics(text)',                                                     '{app,operator}'),
    ('metric_collectors()',                                               '{app,operator,readonly}'),
    ('webhook_for(bytea)',                                                '{app}'),
    ('receive_delivery(bytea,text,text,jsonb,bytea,text,text,jsonb)',     '{app}'),
    ('count_deliveries(jsonb)',                                           '{app}'),
    ('note_presence(uuid,jsonb,text[])',                                  '{app}'),
    ('end_presence(uuid)',                                                '{app}'),
    ('take_doorbells(text,integer,text,boolean)',                         '{app}'),
    ('doorbells(text,integer,text,boolean)',                              '{app}'),
    ('return_doorbells(text,text[])',                                     '{app}'),
    ('take_deliveries(integer,text[])',                                   '{app,operator}'),
    ('settle_delivery(text,text,integer,text,boolean)',                   '{app,operator}'),
    ('tick()',                                                            '{app,operator,cron}'),
    ('sweep_age()',                                                       '{app,operator,readonly,cron}'),
    ('sweep_status()',                                                    '{app,operator,readonly}'),
    ('queue_overview(uuid)',                                              '{app,operator}'),
    ('stalled_queues(uuid)',                                              '{app,operator}'),
    ('find_todos_any_endpoint(text,text,text,text,integer,text,uuid)',    '{app,operator}'),
    ('doctor_facts()',                                                    '{operator,readonly}'),
    -- people
    ('tools()',                                                           '{app,operator,readonly}'),
    ('source_types()',                                                    '{app,operator,readonly}'),
    ('create_human(text)',                                                '{operator}'),
    ('list_humans()',                                                     '{operator,readonly}'),
    ('create_operator_token(uuid,text,timestamptz)',                      '{operator}'),
    ('list_operator_tokens(uuid)',                                        '{operator}'),
    ('revoke_operator_token(uuid,text)',                                  '{operator}'),
    ('create_sign_in_link(uuid,integer)',                                 '{operator}'),
    ('close_sessions(uuid,uuid)',                                         '{operator}'),
    ('list_sessions(uuid)',                                               '{operator}'),
    ('add_human_identity(uuid,text,text)',                                '{operator}'),
    ('remove_human_identity(uuid,text,text)',                             '{operator}'),
    ('list_human_identities(uuid)',                                       '{operator}'),
    ('api_operations()',                                                  '{app,operator,readonly}'),
    ('api_shapes()',                                                      '{app,operator,readonly}'),
    ('vend_endpoint(uuid,text,text[],text[],integer,text[],timestamptz)', '{operator}'),
    ('find_endpoint(text)',                                               '{operator,readonly}'),
    ('list_endpoints(uuid)',                                              '{operator,readonly}'),
    ('rotate_credential(text,integer)',                                   '{operator}'),
    ('revoke_endpoint(text)',                                             '{operator}'),
    ('set_grant(text,text[],text[],integer,text[])',                      '{operator}'),
    ('set_default_lease(text,integer)',                                   '{operator}'),
    ('set_retention(text,integer,bigint)',                                '{operator}'),
    ('bind_login(text,text)',                                             '{operator}'),
    ('unbind_login(text)',                                                '{operator}'),
    ('create_webhook(text,text,text,bytea,bytea,text)',                   '{operator}'),
    ('rotate_webhook(text,text,bytea,bytea,text)',                        '{operator}'),
    ('webhook_endpoint(text,uuid)',                                       '{app,operator}'),
    ('hold_webhook(text,boolean,uuid)',                                   '{app,operator}'),
    ('release_quarantined(text,uuid)',                                    '{app,operator}'),
    ('discard_quarantined(text,uuid)',                                    '{app,operator}'),
    ('list_events_any_endpoint(text,integer,text,text,uuid)',             '{app,operator}'),
    ('get_event_any_endpoint(text,uuid)',                                 '{app,operator}'),
    ('read_event_any_endpoint(text,integer,integer,uuid)',                '{app,operator}'),
    ('replay_event(text,text,uuid)',                                      '{app,operator}'),
    ('webhook_audit_of(text,integer,uuid)',                               '{app,operator}'),
    ('create_notify_hook(text,text,text[],bytea)',                        '{operator}'),
    ('rotate_notify_hook(text,text,bytea)',                               '{operator}'),
    ('list_sealed()',                                                     '{operator}'),
    ('reseal(text,text,text,text,bytea,bytea)',                           '{operator}'),
    ('notify_counts()',                                                   '{app,operator,readonly}'),
    ('delivery_counts()',                                                 '{app,operator,readonly}'),
    ('list_admission(uuid,text)',                                         '{app,operator}'),
    ('get_admission(text,text,uuid)',                                     '{app,operator}'),
    ('put_admission(text,text,jsonb,uuid)',                               '{app,operator}'),
    ('delete_admission(text,text,uuid)',                                  '{app,operator}'),
    ('create_todo_any_endpoint(text,text,text,jsonb,text,text,text,text,integer,uuid)', '{app,operator}'),
    ('get_todo_any_endpoint(text,uuid)',                                  '{app,operator}'),
    ('todo_history_any_endpoint(text,uuid)',                              '{app,operator}'),
    ('list_todos_any_endpoint(text,text,integer,text,text,uuid)',         '{app,operator}'),
    ('claim_any_endpoint(text,integer,uuid)',                             '{app,operator}'),
    ('heartbeat_any_endpoint(text,integer,uuid,boolean)',                 '{app,operator}'),
    ('complete_any_endpoint(text,jsonb,uuid,boolean)',                    '{app,operator}'),
    ('fail_any_endpoint(text,jsonb,uuid,boolean)',                        '{app,operator}'),
    ('release_any_endpoint(text,uuid,boolean)',                           '{app,operator}'),
    ('retry_any_endpoint(text,uuid)',                                     '{app,operator}'),
    ('unsound_todos(integer)',                                            '{operator,readonly}'),
    -- sweeps, for who wants one alone
    ('reap_expired(integer)',                                             '{operator,cron}'),
    ('requeue_due_retries(integer)',                                      '{operator,cron}'),
    ('reopen_admission()',                                                '{operator,cron}'),
    ('sweep_stalled(integer)',                                            '{operator,cron}'),
    ('prune(integer)',                                                    '{operator,cron}')
$$;
comment on function switchboard.granted() is 'Which functions the roles switchboard_<role> may execute; everything else is the owner''s alone.';

do $$
declare
    v_change text;
begin
    -- what is granted but should not be, then what should be but is not
    for v_change in
        with wanted as (
            select ('switchboard.' || g.signature)::regprocedure::oid as proc, ('switchboard_' || r)::regrole::oid as grantee
            from switchboard.granted() g, unnest(g.roles) r
        ), present as (
            select p.oid as proc, a.grantee
            from pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
            where p.pronamespace = 'switchboard'::regnamespace and a.grantee <> p.proowner
        )
        select format('revoke all on function %s from %s cascade', proc::regprocedure, case when grantee = 0 then 'public' else grantee::regrole::text end)
        from (select * from present except select * from wanted) extra
        union all
        select format('grant execute on function %s to %s', proc::regprocedure, grantee::regrole)
        from (select * from wanted except select * from present) missing
    loop
        execute v_change;
    end loop;
    for v_change in
        select format('grant usage on schema switchboard to %I', r.rolname)
        from pg_roles r
        where r.rolname in ('switchboard_app', 'switchboard_operator', 'switchboard_worker', 'switchboard_readonly', 'switchboard_cron')
          and not has_schema_privilege(r.oid, 'switchboard', 'usage')
    loop
        execute v_change;
    end loop;
end $$;
